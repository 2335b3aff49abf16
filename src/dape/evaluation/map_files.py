"""Bias maps as files: what is in them, written and read. No torch here.

maps.npz      scores, bias, f, logits, weights: float32 [sample, layer, head, key] of the last query; lags [key]
images.npz    the same names: float32 [layer, head, query, key] of the last positions of one sample, hidden cells NaN
maps.json     what they are: model, windows, layers and heads (counted from 1), what was found per head
"""

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dape.errors import UsageError

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
    """How far before the last query each key stands: [key], the last one 0."""
    return np.arange(rows["scores"].shape[-1] - 1, -1, -1)


def write_maps(folder: Path, maps: BiasMaps) -> None:
    """Into a folder that exists. The list of files in maps.json holds all that is then in it."""
    _save(folder / ROWS, {**_as_float32(maps.rows), "lags": maps.lags})
    if maps.images is not None:
        _save(folder / IMAGES, _as_float32(maps.images))
    files = sorted({FACTS, *(path.name for path in folder.iterdir())})
    text = json.dumps({"format": FORMAT, **maps.facts, "files": files}, indent=2, allow_nan=False, ensure_ascii=False)
    (folder / FACTS).write_text(text + "\n", encoding="utf-8")


def _save(path: Path, arrays: Stages) -> None:
    np.savez_compressed(path, **arrays)  # pyright: ignore[reportArgumentType]  # takes names, knows allow_pickle


def _as_float32(stages: Stages) -> Stages:
    return {name: np.asarray(stages[name], np.float32) for name in STAGES}


def read_maps(folder: Path) -> BiasMaps:
    facts = read_facts(folder)
    if facts is None:
        raise UsageError(f"{folder}: holds no {FACTS} of `dape visualize`")
    images = _read_arrays(folder / IMAGES) if (folder / IMAGES).exists() else None
    maps = BiasMaps(facts, _read_arrays(folder / ROWS), images)
    expected = (len(facts["samples"]), len(facts["layers"]), len(facts["heads"]), facts["length"])
    if maps.rows["scores"].shape != expected:
        raise ValueError(f"{folder}: {ROWS} has shape {maps.rows['scores'].shape}, {FACTS} says {expected}")
    return maps


def read_facts(folder: Path) -> dict[str, Any] | None:
    """The content of maps.json; None if the folder is not an output of ours."""
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) and facts.get("format") == FORMAT else None


def _read_arrays(path: Path) -> Stages:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in STAGES}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: missing or damaged ({error})") from error
