"""Tensors in safetensors files: reading them runs no code, and what is wrong with them names the file."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dape.reading import reading


def read_tensors(path: Path, advice: str = "") -> dict[str, Tensor]:
    with reading(path, "is damaged", advice):
        return load_file(path)


def write_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    with writing(path):
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, path, metadata)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A full disk is an OSError, as everywhere else."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(f"cannot write {path}: {error}") from error
