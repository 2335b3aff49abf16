"""Tensors in safetensors files. Reading runs no code, and errors name the file."""

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
    """Raise OSError, as other ways of writing do, where safetensors has an error of its own, for instance on a full
    disk."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(f"cannot write {path}: {error}") from error
