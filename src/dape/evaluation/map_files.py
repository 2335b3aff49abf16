"""Write and read the files of bias maps. No torch here.

maps.npz      scores, bias, f, logits, weights: float32 [sample, layer, head, key] of the last query; lags [key]
images.npz    the same names: float32 [layer, head, query, key] of the last positions of one sample; masked cells NaN
maps.json     their description: model, windows, layers and heads (counted from 1), measures of each head
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np

from dape.errors import UsageError
from dape.files import sha256
from dape.reading import (
    Count,
    FileName,
    Sha256,
    as_record,
    check_files,
    check_seal,
    read_json,
    reading,
    sealed,
    unsealed,
)

STAGES = ("scores", "bias", "f", "logits", "weights")
ROWS, IMAGES, FACTS = "maps.npz", "images.npz", "maps.json"
FORMAT = "dape visualize 1"

Stages = dict[str, np.ndarray]


@dataclass(frozen=True)
class BiasMaps:
    facts: dict[str, Any]
    """The content of maps.json."""
    rows: Stages
    """[sample, layer, head, key] of the last query."""
    images: Stages | None
    """[layer, head, query, key]; None if there are none."""

    @property
    def lags(self) -> np.ndarray:
        return lags_of(self.rows)


def lags_of(rows: Stages) -> np.ndarray:
    """Lag of each key from the last query: [key], 0 for the last key."""
    return np.arange(rows["scores"].shape[-1] - 1, -1, -1)


def write_maps(folder: Path, maps: BiasMaps) -> None:
    """Write maps into an existing folder. maps.json lists all files that are then in it."""
    _save(folder / ROWS, {**_as_float32(maps.rows), "lags": maps.lags})
    if maps.images is not None:
        _save(folder / IMAGES, _as_float32(maps.images))
    files = sorted({FACTS, *(path.name for path in folder.iterdir())})
    checksums = {name: sha256(folder / name) for name in (ROWS, IMAGES) if name in files}
    facts = sealed({"format": FORMAT, **maps.facts, "files": files, "sha256": checksums})
    text = json.dumps(facts, indent=2, allow_nan=False, ensure_ascii=False)
    (folder / FACTS).write_text(text + "\n", encoding="utf-8")


def _save(path: Path, arrays: Stages) -> None:
    np.savez_compressed(path, **arrays)  # pyright: ignore[reportArgumentType]  # arrays by name


def _as_float32(stages: Stages) -> Stages:
    return {name: np.asarray(stages[name], np.float32) for name in STAGES}


def read_maps(folder: Path) -> BiasMaps:
    """Read and check the files of :func:`write_maps`. Those of older versions have no checksums."""
    facts = read_facts(folder)
    if facts is None:
        raise UsageError(f"{folder}: holds no {FACTS} of `dape visualize`")
    with reading(folder / FACTS, "is damaged", _ADVICE):
        check_seal(facts)
        known = as_record(_Facts, {name: value for name, value in facts.items() if name in _Facts.__annotations__})
    check_files(folder, known.get("sha256", {}), _ADVICE)
    layers, heads = len(known["layers"]), len(known["heads"])
    rows = _read_arrays(folder / ROWS, (len(known["samples"]), layers, heads, known["length"]))
    images = _read_arrays(folder / IMAGES, (layers, heads, None, None)) if (folder / IMAGES).exists() else None
    return BiasMaps(unsealed(facts), rows, images)


_ADVICE = "Draw the maps again with `dape visualize`."


class _Facts(TypedDict):
    """The part of maps.json that readers rely on."""

    samples: list[dict[str, Any]]
    layers: list[Count]
    heads: list[Count]
    length: Count
    query: NotRequired[Count]
    method: NotRequired[str]
    terms: NotRequired[dict[str, str | bool]]
    heads_summary: NotRequired[list[dict[str, Any]]]
    files: NotRequired[list[FileName]]
    sha256: NotRequired[dict[FileName, Sha256]]


def read_facts(folder: Path) -> dict[str, Any] | None:
    """The content of maps.json; None if the folder was not written by :func:`write_maps`."""
    try:
        facts = read_json(folder / FACTS)
    except (OSError, ValueError):
        return None
    return facts if facts.get("format") == FORMAT else None


def _read_arrays(path: Path, shape: tuple[int | None, ...]) -> Stages:
    """All stages in a file. ValueError unless they have this shape; None is any size."""
    if not path.is_file():
        raise ValueError(f"{path}: missing or damaged. {_ADVICE}")
    with reading(path, "missing or damaged", _ADVICE), path.open("rb") as file:
        with np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in STAGES}
        for name, values in arrays.items():
            fits = values.ndim == len(shape) and all(n in (None, m) for n, m in zip(shape, values.shape, strict=True))
            if not fits or values.dtype.kind != "f":
                raise ValueError(f"{name} has shape {values.shape} of {values.dtype}, {FACTS} says {shape}")
        return arrays
