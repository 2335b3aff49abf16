"""Checkpoints: a folder of safetensors and JSON that appears whole or not at all, and is verified when it is read.

    checkpoints/step-00000500/model.safetensors       weights
                              optimizer.safetensors   AdamW's averages, by parameter name
                              tokenizer.json
                              checkpoint.json         step, settings, data, scaler, and the sha256 of the files above

Loading runs no code: no pickle anywhere.
"""

import dataclasses
import hashlib
import json
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dape.data.tokenizer import Tokenizer
from dape.errors import UsageError
from dape.files import new_folder
from dape.models.config import DecoderConfig
from dape.models.decoder import DecoderLM
from dape.training.config import TrainConfig

FORMAT = 1
MODEL, OPTIMIZER, DESCRIPTION = "model.safetensors", "optimizer.safetensors", "checkpoint.json"
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a checkpoint says about itself."""

    step: int
    """Optimizer steps that were taken."""
    model: DecoderConfig
    train: TrainConfig
    data: dict[str, Any]
    """Name and hash of the corpus, name and fingerprint of its tokenizer."""
    scaler: dict[str, Any] = dataclasses.field(default_factory=dict)
    """State of the loss scaler, with fp16."""


# Writing -------------------------------------------------------------------------------------------------------------


def save(
    folder: Path, description: Description, model: nn.Module, optimizer: torch.optim.Optimizer, tokenizer: Tokenizer
) -> Path:
    """Write a checkpoint under ``folder``; whatever goes wrong, those already there stay as they are."""
    target = folder / f"step-{description.step:08d}"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with new_folder(target) as temporary:
        _save_tensors(dict(model.state_dict()), temporary / MODEL)
        _save_tensors(_optimizer_tensors(model, optimizer), temporary / OPTIMIZER)
        tokenizer.save(temporary)
        checksums = {path.name: sha256(path) for path in sorted(temporary.iterdir())}
        text = json.dumps({"format": FORMAT, **asdict(description), "sha256": checksums}, indent=2)
        (temporary / DESCRIPTION).write_text(text + "\n", encoding="utf-8")
    return target


def _save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    try:
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, path)
    except SafetensorError as error:  # how it reports a full disk
        raise OSError(f"cannot write {path.parent.name}: {error}") from error


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}:{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest ``keep`` checkpoints, and what an interrupted save has left."""
    found = checkpoints(folder)
    for old in found[: max(0, len(found) - keep)]:
        # Renamed first, so that an interruption leaves no checkpoint with half its files.
        doomed = old.with_name(f".{old.name}.old")
        old.rename(doomed)
    for rest in [*folder.glob(".step-*.tmp"), *folder.glob(".step-*.old")]:
        shutil.rmtree(rest, ignore_errors=True)


# Reading -------------------------------------------------------------------------------------------------------------


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints in ``folder``, oldest first."""
    found = (p for p in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", p.name) and p.is_dir())
    return sorted(found, key=lambda p: int(p.name.removeprefix("step-")))


def find(path: Path) -> Path:
    """The checkpoint that ``path`` means: itself, or the newest one of a run."""
    if (path / DESCRIPTION).is_file():
        return path
    for folder in (path / CHECKPOINTS, path):
        found = checkpoints(folder)
        if found:
            return found[-1]
    if not path.exists():
        raise UsageError(f"{path}: there is no such checkpoint or run")
    raise UsageError(f"{path}: holds no checkpoint; give the --out folder of `dape train`, or one of its checkpoints")


def describe(checkpoint: Path) -> Description:
    """The checkpoint's own description, after a check that its files are those that were saved."""
    try:
        given = json.loads((checkpoint / DESCRIPTION).read_text(encoding="utf-8"))
        if given["format"] != FORMAT:
            raise ValueError(f"format {given['format']}, while this version of dape reads format {FORMAT}")
        description = Description(
            step=int(given["step"]),
            model=DecoderConfig(**given["model"]),
            train=TrainConfig(**given["train"]),
            data=dict(given["data"]),
            scaler=dict(given["scaler"]),
        )
        checksums = dict(given["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{checkpoint}: {DESCRIPTION} cannot be read ({error or type(error).__name__})") from error
    for name, expected in checksums.items():
        _check_file(checkpoint / name, expected)
    return description


def _check_file(path: Path, expected: str) -> None:
    if not path.is_file():
        raise ValueError(f"{path.parent}: damaged, {path.name} is missing. {_ADVICE}")
    if sha256(path) != expected:
        raise ValueError(f"{path.parent}: damaged, {path.name} is not what was saved (checksums differ). {_ADVICE}")


_ADVICE = "Remove this folder to go on from an older checkpoint, or copy it anew."


def load_model(checkpoint: Path, description: Description, device: torch.device) -> DecoderLM:
    model = DecoderLM(description.model).to(device)
    restore_model(checkpoint, model)
    return model


def restore_model(checkpoint: Path, model: nn.Module) -> None:
    try:
        model.load_state_dict(load_file(checkpoint / MODEL))
    except (RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{checkpoint}: {MODEL} does not fit what {DESCRIPTION} says ({reason})") from error


def restore_optimizer(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put the averages back, each on its parameter."""
    parameters = dict(model.named_parameters())
    state: dict[str, dict[str, Tensor]] = {}
    try:
        saved = load_file(checkpoint / OPTIMIZER)
    except SafetensorError as error:
        raise ValueError(f"{checkpoint}: {OPTIMIZER} cannot be read ({error})") from error
    for name, tensor in saved.items():
        parameter, _, key = name.rpartition(":")
        state.setdefault(parameter, {})[key] = tensor
    for name, values in state.items():
        device = parameters[name].device
        optimizer.state[parameters[name]] = {
            key: value.to(device) if value.dim() or device.type != "cpu" else value for key, value in values.items()
        }


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
