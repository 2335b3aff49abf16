"""A training run as a folder: settings, metrics, checkpoints.

RUN/config.yaml       all settings, after presets and flags; `dape train --config RUN/config.yaml` repeats the run
    metrics.jsonl     one line per logged step
    checkpoints/      see checkpoint.py
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import yaml

from dape.config.load import read_settings
from dape.errors import UsageError
from dape.files import write_text
from dape.models.config import DecoderConfig
from dape.reading import Count, as_record, parse_json, read_json_lines, reading, short
from dape.training.config import TrainConfig

CONFIG, METRICS = "config.yaml", "metrics.jsonl"
FREE_TO_CHANGE = {"log_every", "validate_every", "save_every", "save_seconds", "keep"}
"""Settings that do not touch the weights: a run may be continued with others."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything a run's weights depend on, apart from the machine."""

    model: DecoderConfig
    train: TrainConfig
    data: str
    threads: int
    """Threads of torch on the CPU: another number may change the last bits."""

    def write(self, folder: Path) -> None:
        settings = _plain(asdict(self))
        settings["model"].pop("vocabulary")  # follows from the data
        write_text(folder / CONFIG, yaml.safe_dump(settings, sort_keys=False))

    @classmethod
    def read(cls, folder: Path) -> "RunConfig":
        return read_settings(folder / CONFIG, cls)

    def check_continues(self, saved: "RunConfig", folder: Path) -> None:
        """Refuse to continue ``saved`` with settings that would give other weights."""
        model = replace(saved.model, vocabulary=self.model.vocabulary)  # follows from the data
        changed = changes({"data": saved.data}, {"data": self.data})
        changed += changes(asdict(model), asdict(self.model)) + changes(asdict(saved.train), asdict(self.train))
        if changed:
            raise UsageError(
                f"{folder} was begun with other settings: {'; '.join(changed)}. "
                "Leave those out to continue it, or start another run with another `out`."
            )


def run_folder(checkpoint: Path) -> Path:
    """The folder of the run that a checkpoint belongs to."""
    return checkpoint.resolve().parent.parent


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Name, old and new value of all differing settings that affect the weights."""
    old, new = (json.loads(json.dumps(settings)) for settings in (old, new))  # tuples become lists, as in files
    names = [name for name in dict.fromkeys([*old, *new]) if name not in FREE_TO_CHANGE]
    return [f"{n} was {short(old.get(n))}, now {short(new.get(n))}" for n in names if old.get(n) != new.get(n)]


def _plain(value: Any) -> Any:
    """The value as YAML can write it: tuples as lists, without settings that are None or empty."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item is not None and item != {}}
    return list(value) if isinstance(value, tuple) else value


class Metrics:
    """Lines of JSON, one per logged step."""

    def __init__(self, folder: Path, *, after_step: int) -> None:
        self._path = folder / METRICS
        if self._path.exists():
            # A killed run repeats the steps after its last checkpoint, and logs them again.
            kept = [line for line in read_metrics(folder) if line["step"] <= after_step]
            write_text(self._path, "".join(json.dumps(line) + "\n" for line in kept))

    def add(self, line: Mapping[str, Any]) -> None:
        # JSON has neither infinity (as the norm of an fp16 gradient that was skipped) nor NaN.
        finite = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in line.items()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite) + "\n")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """All complete lines of metrics.jsonl. An incomplete last line is left out: it was cut off, or is being written."""
    path = folder / METRICS
    if not path.exists():
        return []
    return [_metrics(f"{path}, line {number}", text) for number, whole, text in read_json_lines(path) if whole]


class _Step(TypedDict):
    step: Count


def _metrics(where: str, text: bytes) -> dict[str, Any]:
    with reading(where, "is not a line of metrics", "Remove the line."):
        line = as_record(dict[str, int | float | None], parse_json(text), where)
        as_record(_Step, {"step": line.get("step")}, where)
        return line
