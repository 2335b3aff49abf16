"""A training run as a folder: settings, metrics, checkpoints.

RUN/config.yaml       all settings, after presets and flags; `dape train --config RUN/config.yaml` repeats the run
    metrics.jsonl     one line per logged step
    checkpoints/      see checkpoint.py
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from dape.config.load import read_yaml
from dape.errors import UsageError
from dape.files import write_text
from dape.models.config import DecoderConfig
from dape.training.config import TrainConfig

CONFIG, METRICS = "config.yaml", "metrics.jsonl"
FREE_TO_CHANGE = {"log_every", "validate_every", "save_every", "keep"}
"""Settings that do not touch the weights: a run may be continued with others."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything a run's weights depend on, apart from the machine."""

    model: DecoderConfig
    train: TrainConfig
    data: str
    threads: int
    """Of torch on the CPU: another number may change the last bits."""

    def write(self, folder: Path) -> None:
        settings = _plain(asdict(self))
        settings["model"].pop("vocabulary")  # follows from the data
        write_text(folder / CONFIG, yaml.safe_dump(settings, sort_keys=False))

    @classmethod
    def read(cls, folder: Path) -> "RunConfig":
        path = folder / CONFIG
        given = read_yaml(path)
        try:
            return cls(
                model=DecoderConfig(**given["model"]),
                train=TrainConfig(**given["train"]),
                data=str(given["data"]),
                threads=int(given["threads"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{path}: is not the settings of a run ({error})") from error

    def check_continues(self, saved: "RunConfig", folder: Path) -> None:
        """Refuse to continue ``saved`` with settings that would give other weights."""
        pairs = [
            ("data", saved.data, self.data),
            *_pairs(saved.model, self.model),
            *_pairs(saved.train, self.train),
        ]
        changed = [
            f"{name} was {old!r}, now {new!r}"
            for name, old, new in pairs
            if old != new and name not in FREE_TO_CHANGE and name != "vocabulary"
        ]
        if changed:
            raise UsageError(
                f"{folder} was begun with other settings: {'; '.join(changed)}. "
                "Leave those flags out to continue it, or start another run with another --out."
            )


def _pairs(old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    return [(f.name, getattr(old, f.name), getattr(new, f.name)) for f in fields(old)]


def _plain(value: Any) -> Any:
    """YAML without Python types; what is not set is left out."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item is not None and item != {}}
    return list(value) if isinstance(value, tuple) else value


class Metrics:
    """Lines of JSON, one per logged step."""

    def __init__(self, folder: Path, *, after_step: int) -> None:
        self._path = folder / METRICS
        if self._path.exists():
            # What a killed run logged beyond its last checkpoint happens once more.
            kept = [line for line in read_metrics(folder) if line["step"] <= after_step]
            write_text(self._path, "".join(json.dumps(line) + "\n" for line in kept))

    def add(self, line: Mapping[str, Any]) -> None:
        # JSON knows neither infinity (an fp16 gradient that was skipped) nor NaN.
        line = {name: None if _is_odd(value) else value for name, value in line.items()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _is_odd(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """All complete lines; the last may have been cut off, or be in the making."""
    path = folder / METRICS
    if not path.exists():
        return []
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    return [json.loads(line) for line in whole.splitlines() if line.strip()]
