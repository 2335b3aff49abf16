"""Checkpoints: folders of safetensors and JSON that appear whole or not at all, and are verified when they are read.

    checkpoints/step-00000500/model.safetensors       weights
                              optimizer.safetensors   AdamW's averages, by parameter name
                              tokenizer.json          if the task has a tokenizer
                              checkpoint.json         step, settings, data, scaler, and the sha256 of the files above

If only a part of the model is trained (an adapter), only that part is saved. Loading runs no code: no pickle anywhere.
If the model is divided among processes, each process writes a file of its own (shards.py).
"""

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dape.data import tokenizer as tokenizers
from dape.data.tokenizer import Tokenizer
from dape.errors import UsageError
from dape.files import new_folder, sha256
from dape.machine import available_bytes
from dape.models.config import DecoderConfig
from dape.models.decoder import DecoderLM
from dape.reading import reading, sealed
from dape.training.cost import require_fits
from dape.training.description import (
    ADVICE,
    DESCRIPTION,
    FORMAT,
    MODEL,
    OPTIMIZER,
    Description,
    OtherFormatError,
    checkpoints,
    describe,
)
from dape.training.parallel import ALONE, Group
from dape.training.run import changes
from dape.training.saving import Saving
from dape.training.shards import Snapshot, read_joined, sharded_like
from dape.training.tensors import write_tensors

NOT_IN_WEIGHTS = {"name", "tokenizer", "scale", "lengths", "samples", "depths", "test_pairs"}
"""Entries of a task's identity that do not affect the weights: names, and the settings of tests after training."""


# Writing -------------------------------------------------------------------------------------------------------------


def save(
    folder: Path,
    description: Description,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    tokenizer: Tokenizer | None = None,
) -> Path:
    """Write a checkpoint under ``folder``. A failure leaves the existing checkpoints as they are."""
    target = checkpoint_path(folder, description.step)
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with new_folder(target) as temporary:
        write_tensors(_model_tensors(model), temporary / MODEL)
        write_tensors(_optimizer_tensors(model, optimizer), temporary / OPTIMIZER)
        if tokenizer is not None:
            tokenizer.save(temporary)
        _write_description(temporary, description, {})
    return target


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def _write_description(folder: Path, description: Description, checksums: dict[str, str]) -> None:
    """Write checkpoint.json, which must be the last file. ``checksums``: those that are known already, of shards."""
    own = {path.name: sha256(path) for path in sorted(folder.iterdir()) if path.name not in checksums}
    content = {
        "format": FORMAT,
        "kind": "decoder" if isinstance(description.model, DecoderConfig) else "other",
        **vars(description),
        "model": _settings(description.model),
        "train": asdict(description.train),
        "sha256": {**checksums, **own},
    }
    (folder / DESCRIPTION).write_text(json.dumps(sealed(content), indent=2) + "\n", encoding="utf-8")


def begin_sharded(
    folder: Path,
    description: Description,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    tokenizer: Tokenizer | None,
    *,
    group: Group,
    keep: int,
) -> Saving | None:
    """Copy the tensors of every process, and write the copies while training goes on. None if the checkpoint exists."""
    target = checkpoint_path(folder, description.step)
    if group.any(target.exists()):
        return None
    folder.mkdir(parents=True, exist_ok=True)

    def finish(temporary: Path, checksums: dict[str, str]) -> None:
        if tokenizer is not None:
            tokenizer.save(temporary)
        _write_description(temporary, description, checksums)

    tensors = {MODEL: _model_tensors(model), OPTIMIZER: _optimizer_tensors(model, optimizer)}
    snapshots = {file: Snapshot(of, whole=group.is_first) for file, of in tensors.items()}
    return Saving(target, group, snapshots, finish=finish, after=lambda: prune(folder, keep))


def merge(checkpoint: Path, target: Path) -> Path:
    """Write a sharded checkpoint again, with one file for the model and one for the optimizer."""
    description = describe(checkpoint)
    if target.exists():
        raise UsageError(f"`out` {target} exists already; choose another folder")
    with new_folder(target) as temporary:
        for file in (MODEL, OPTIMIZER):
            write_tensors(read_joined(checkpoint, file, ADVICE), temporary / file)
        for name in (tokenizers.FILE, tokenizers.INFO):
            if (checkpoint / name).exists():
                shutil.copyfile(checkpoint / name, temporary / name)
        _write_description(temporary, description, {})
    return target


def _settings(model: Any) -> dict[str, Any]:
    return dict(model) if isinstance(model, Mapping) else asdict(model)


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All tensors of the model, tied weights once; of a partly frozen model only the parameters that are trained."""
    parameters = dict(model.named_parameters())
    if any(not p.requires_grad for p in parameters.values()):
        return {name: p for name, p in parameters.items() if p.requires_grad}
    names = {*parameters, *dict(model.named_buffers())}
    return {name: tensor for name, tensor in model.state_dict().items() if name in names}


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}:{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest ``keep`` checkpoints, and what interrupted calls have left."""
    found = checkpoints(folder)
    for old in found[: max(0, len(found) - keep)]:
        # Renamed first, so that an interruption leaves no checkpoint with half its files.
        old.rename(old.with_name(f".{old.name}.old"))
    for rest in [*folder.glob(".step-*.tmp"), *folder.glob(".step-*.old")]:
        shutil.rmtree(rest, ignore_errors=True)


# Reading -------------------------------------------------------------------------------------------------------------


def resume(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, now: Description, group: Group = ALONE
) -> Description | None:
    """Restore the newest intact checkpoint and return its description, or None if there is none.

    ``now`` describes this run at its beginning: with other settings than the saved ones it is refused.
    """
    name = group.from_first(lambda: _newest_intact(folder))
    if not name:
        return None
    saved = describe(folder / name, verify=False)  # the first process has verified it
    check_continues(saved, now, folder / name)
    restore_model(folder / name, model)
    restore_optimizer(folder / name, model, optimizer)
    return saved


def _newest_intact(folder: Path) -> str:
    """The name of the newest intact checkpoint; "" if there are no checkpoints.

    Damaged ones that are newer are renamed, with a note. If all are damaged, none is renamed, and the error of the
    newest is raised.
    """
    damaged: dict[Path, ValueError] = {}
    for found in reversed(checkpoints(folder)):
        try:
            describe(found)
        except OtherFormatError:
            raise
        except ValueError as error:
            damaged[found] = error
            continue
        for bad, error in damaged.items():
            aside = bad.with_name(f"damaged-{bad.name}")
            shutil.rmtree(aside, ignore_errors=True)
            bad.rename(aside)
            print(f"note: {error} It is now {aside.name}; going on from {found.name}", file=sys.stderr, flush=True)
        return found.name
    if damaged:
        raise next(iter(damaged.values()))
    return ""


def check_continues(saved: Description, now: Description, where: Path) -> None:
    """Refuse to go on from a checkpoint with settings that would have given other weights."""
    if saved.data.get("hash") != now.data.get("hash"):
        names = [f"{of.data.get('name')} ({str(of.data.get('hash'))[:12]})" for of in (saved, now)]
        raise UsageError(
            f"{where} was trained on {names[0]}, the data given now is {names[1]}; "
            "a run is continued on its own data only"
        )
    known = (saved.data.keys() & now.data.keys()) - NOT_IN_WEIGHTS  # older versions noted less
    data = [{name: of.data[name] for name in sorted(known)} for of in (saved, now)]
    models = (_settings(saved.model), _settings(now.model))
    pairs = (models, (asdict(saved.train), asdict(now.train)), data)
    if changed := [change for old, new in pairs for change in changes(old, new)]:
        raise UsageError(
            f"{where} was made with other settings: {'; '.join(changed)}. A run goes on with its own settings only: "
            "put them back, or start another run with another `out`."
        )


def load_model(checkpoint: Path, description: Description, device: torch.device) -> DecoderLM:
    """The language model of a checkpoint. ValueError if the checkpoint is of another kind, or does not fit memory."""
    with reading(checkpoint / DESCRIPTION, "cannot be loaded"):
        if not isinstance(description.model, DecoderConfig):
            raise ValueError("it is not of a language model")
        require_fits(description.model, available_bytes())
    model = DecoderLM(description.model).to(device)
    restore_model(checkpoint, model)
    return model


def restore_model(checkpoint: Path, model: nn.Module) -> None:
    """Load all weights, or those of the part that is trained."""
    tensors, expected = read_joined(checkpoint, MODEL, ADVICE), _model_tensors(model)
    with reading(checkpoint / MODEL, f"does not fit what {DESCRIPTION} says"):
        if different := sorted(tensors.keys() ^ expected.keys()):
            raise ValueError(f"{different[0]} is in one of them only")
        model.load_state_dict({name: sharded_like(t, expected[name]) for name, t in tensors.items()}, strict=False)


def restore_optimizer(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load AdamW's averages."""
    parameters = dict(model.named_parameters())
    state: dict[str, dict[str, Tensor]] = {}
    for name, tensor in read_joined(checkpoint, OPTIMIZER, ADVICE).items():
        parameter, _, key = name.rpartition(":")
        if parameter not in parameters or tensor.shape not in ((), parameters[parameter].shape):
            raise ValueError(f"{checkpoint / OPTIMIZER}: {name} {list(tensor.shape)} does not fit the model. {ADVICE}")
        state.setdefault(parameter, {})[key] = sharded_like(tensor, parameters[parameter])
    for name, values in state.items():
        device = parameters[name].device
        optimizer.state[parameters[name]] = {
            key: value.to(device) if value.dim() or device.type != "cpu" else value for key, value in values.items()
        }
