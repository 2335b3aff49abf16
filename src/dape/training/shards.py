"""Sharded tensors, in a file for each process; and such files joined again.

    model-00001-of-00002.safetensors    the rows of process 0, and the tensors that are not sharded
    model-00002-of-00002.safetensors    the rows of process 1

The header of a file has, under ``rows``, the first row and the whole shape of every sharded tensor.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from dape.reading import as_record, parse_json, reading
from dape.training.description import files_of
from dape.training.parallel import own_rows
from dape.training.tensors import read_tensors, write_tensors

ROWS = "rows"


class Snapshot:
    """Copies of this process's shards, so that training may go on while they are written."""

    def __init__(self, tensors: Mapping[str, Tensor], *, whole: bool) -> None:
        """``whole``: copy tensors that are not sharded too."""
        self._rows: dict[str, list[int]] = {}
        self._own: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            own, first = own_rows(tensor)
            if isinstance(tensor, DTensor):
                self._rows[name] = [first, *tensor.shape]
            if whole or isinstance(tensor, DTensor):
                self._own[name] = own.detach().to("cpu", copy=True)

    def write(self, path: Path) -> None:
        write_tensors(self._own, path, {ROWS: json.dumps(self._rows)})


def read_joined(folder: Path, file: str, advice: str) -> dict[str, Tensor]:
    """Read whole tensors, from one file or from all of its shards."""
    names = files_of(file, [path.name for path in folder.iterdir()]) or [file]
    if names == [file]:
        return read_tensors(folder / file, advice)
    whole: dict[str, Tensor] = {}
    filled: dict[str, int] = {}
    for name in names:
        path = folder / name
        rows, tensors = _rows(path, advice), read_tensors(path, advice)
        with reading(path, "does not fit the other shards", advice):
            for key, tensor in tensors.items():
                _put(whole, filled, key, tensor, rows.get(key))
    with reading(folder / file, "its shards do not make a whole", advice):
        for key, count in filled.items():
            if count != len(whole[key]):
                raise ValueError(f"{key} has {count} of {len(whole[key])} rows")
    return whole


def _put(whole: dict[str, Tensor], filled: dict[str, int], key: str, tensor: Tensor, rows: list[int] | None) -> None:
    """Add a shard to ``whole``; ``filled`` counts the rows that are there."""
    if rows is None:
        whole[key] = tensor
        return
    first, *shape = rows
    target = whole.setdefault(key, torch.empty(shape, dtype=tensor.dtype))
    if list(target.shape) != shape or (len(tensor) and first != filled.get(key, 0)):
        raise ValueError(f"{key}: row {first} of {shape} does not follow row {filled.get(key, 0)}")
    target[first : first + len(tensor)] = tensor
    filled[key] = filled.get(key, 0) + len(tensor)


def _rows(path: Path, advice: str) -> dict[str, list[int]]:
    with reading(path, "is damaged", advice), safe_open(path, "pt") as file:
        return as_record(dict[str, list[int]], parse_json((file.metadata() or {}).get(ROWS, "{}")), str(path))


def sharded_like(tensor: Tensor, parameter: Any) -> Tensor:
    """The tensor, sharded among the processes if ``parameter`` is."""
    if not isinstance(parameter, DTensor) or not tensor.dim():
        return tensor
    whole = tensor.to(parameter.device)
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
