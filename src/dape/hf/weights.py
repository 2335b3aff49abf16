"""Whether weights are those of before: of a model in memory, and of a folder."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dape.files import sha256, sha256_of
from dape.hf.attention import PLACE

SAMPLES = 64
"""Numbers read from each tensor, so that a model of many gigabytes is not read whole for an adapter of kilobytes."""


def fingerprint(model: nn.Module) -> str | None:
    """A hash of names, shapes and some evenly spread numbers of every tensor; None if weights are not in memory.
    Numbers are rounded to bfloat16, so that a model in half precision has the same. Head and adapter are left out."""
    library: Any = model
    digest = hashlib.sha256()
    body = library.base_model
    others = _of_peft(body)
    for given, parameter in body.named_parameters():
        name = given.replace(".base_layer.", ".")
        if parameter.is_meta:  # put aside by accelerate
            return None
        if f".{PLACE}." in name or not parameter.numel() or given.startswith(others):
            continue
        at = torch.arange(SAMPLES, device=parameter.device) * (parameter.numel() - 1) // (SAMPLES - 1)
        sample = parameter.detach().flatten()[at].to(torch.bfloat16).float().cpu()
        digest.update(f"{name} {list(parameter.shape)} {sample.tolist()}\n".encode())
    return digest.hexdigest()


def _of_peft(body: nn.Module) -> tuple[str, ...]:
    """Prefixes of the names of modules that peft has put beside the model's own layers."""
    return tuple(
        f"{name}.{child}."
        for name, module in body.named_modules()
        if type(module).__module__.partition(".")[0] == "peft"
        for child, _ in module.named_children()
        if child != "base_layer"
    )


def folder_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of a folder's weights and of its configuration; takes seconds per gigabyte."""
    weights = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
    lines = "\n".join(f"{path.name} {sha256(path)}" for path in weights)
    return {"weights_hash": sha256_of(lines), "config_hash": sha256(folder / "config.json")}
