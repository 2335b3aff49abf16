"""``dape runs``: find, describe, compare and clean runs. No torch here.

A run is a folder with ``config.yaml`` or ``job.json``. The runs of an experiment lie in its subfolder ``runs``.
"""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dape.config.load import read_yaml
from dape.errors import UsageError
from dape.experiments.grid import RUNS
from dape.experiments.job import JOB, ROWS, plain_job
from dape.files import locked
from dape.results.records import Row, read_rows
from dape.training.description import CHECKPOINTS, checkpoints
from dape.training.run import CONFIG, METRICS, read_metrics

DEEPEST = 5
"""Levels of folders to search."""
JUST_NOW = 120
"""A run that has logged within this many seconds counts as running."""
LEFTOVER = re.compile(r"\.step-\d+.*\.(tmp|old)|damaged-step-\d{8,}")
"""Folders that interrupted saves leave behind, and damaged checkpoints."""


@dataclass(frozen=True)
class FoundRun:
    """A run, described by its files."""

    folder: Path
    settings: Mapping[str, Any]
    """By ``section.name``."""
    metrics: Sequence[Mapping[str, Any]]
    rows: Sequence[Row]
    """Results of its tests; only finished runs of an experiment have them."""
    size: int
    """Bytes."""

    @property
    def method(self) -> str:
        return str(self._first("encoding", "method", "treatment") or "?")

    @property
    def seed(self) -> str:
        return str(self._first("seed"))

    @property
    def step(self) -> int:
        return max((int(line["step"]) for line in self.metrics), default=0)

    @property
    def steps(self) -> int | None:
        return self._first("steps")

    @property
    def loss(self) -> float | None:
        """The last loss on held-out text; without such, the last loss in training."""
        for name in ("validation_loss", "loss"):
            if found := [line[name] for line in self.metrics if line.get(name) is not None]:
                return float(found[-1])
        return None

    @property
    def state(self) -> str:
        if self.rows or (self.steps is not None and self.step >= self.steps):
            return "finished"
        metrics = self.folder / METRICS
        if metrics.is_file() and time.time() - metrics.stat().st_mtime < JUST_NOW:
            return "running"
        return "stopped" if self.metrics else "not begun"

    def _first(self, *names: str) -> Any:
        """The setting with the first of these names that exists in any section."""
        return next((v for name in names for key, v in self.settings.items() if key.rpartition(".")[2] == name), None)


def find_runs(top: Path) -> list[FoundRun]:
    """``top`` itself if it is a run, else all runs below it, by name."""
    if not top.is_dir():
        raise UsageError(f"{top}: there is no such folder; name one with runs (by default ./runs)")
    return [open_run(folder) for folder in _folders(top, DEEPEST)]


def _folders(top: Path, depth: int) -> Iterator[Path]:
    if _is_run(top):
        yield top
    elif depth:
        for inner in sorted(p for p in top.iterdir() if p.is_dir() and not p.is_symlink() and p.name[0] != "."):
            yield from _folders(inner, depth - 1)


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (CONFIG, JOB))


def open_run(folder: Path) -> FoundRun:
    if not _is_run(folder):
        raise UsageError(f"{folder}: is not a run (no {CONFIG} nor {JOB} in it); `dape runs` lists what there is")
    settings = read_yaml(folder / CONFIG) if (folder / CONFIG).is_file() else plain_job(folder)
    with contextlib.suppress(ValueError, OSError):
        rows = read_rows(folder / ROWS, warn=lambda words: None) if (folder / ROWS).is_file() else []
        return FoundRun(folder, dict(_flat(settings)), read_metrics(folder), rows, size_of(folder))
    return FoundRun(folder, dict(_flat(settings)), [], [], size_of(folder))


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + str(name), value


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; links count as 0."""
    if path.is_symlink():
        return 0
    if not path.is_dir():
        return path.stat().st_size
    with os.scandir(path) as entries:
        return sum(size_of(Path(entry.path)) for entry in entries)


def sizes(run: FoundRun) -> dict[str, int]:
    """Bytes of each file and subfolder, the largest first."""
    found = {path.name: size_of(path) for path in run.folder.iterdir()}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def differences(runs: Sequence[FoundRun]) -> dict[str, list[Any]]:
    """The settings in which the runs differ, with the value of each run."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    values = {name: [run.settings.get(name) for run in runs] for name in names}
    return {name: each for name, each in values.items() if any(value != each[0] for value in each)}


# Cleaning up ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Doomed:
    path: Path
    size: int
    why: str


def superfluous(top: Path, *, weights: bool = False) -> list[Doomed]:
    """Folders to remove: all checkpoints but the newest of each run, and leftovers of interrupted saves.

    All runs can still be evaluated and continued. With ``weights``, also the newest checkpoint of each finished run of
    an experiment: its results stay, its model is lost.
    """
    return [doomed for run in find_runs(top) for doomed in _of_run(run, weights)]


def _of_run(run: FoundRun, weights: bool) -> Iterator[Doomed]:
    folder = run.folder / CHECKPOINTS
    if not folder.is_dir() or folder.is_symlink():
        return
    kept = 0 if weights and run.rows else 1
    found = checkpoints(folder)
    for old in found[: len(found) - kept]:
        why = "results are kept, the model is lost" if old == found[-1] else "older than the newest checkpoint"
        yield Doomed(old, size_of(old), why)
    for path in sorted(folder.iterdir()):
        if LEFTOVER.fullmatch(path.name) and not path.is_symlink():
            yield Doomed(path, size_of(path), "left by an interrupted save" if path.name[0] == "." else "damaged")


def remove(doomed: Sequence[Doomed]) -> int:
    """Delete the folders; returns the bytes freed. Raises if a process of dape is working in one of the runs."""
    freed = 0
    by_run: dict[Path, list[Doomed]] = {}
    for each in doomed:
        by_run.setdefault(each.path.parent.parent, []).append(each)
    for run, of_run in by_run.items():
        in_grid = run.parent.name == RUNS and any(run.parent.parent.glob("*.yaml"))
        with locked(run.parent.parent if in_grid else run):
            for each in of_run:
                # Rename first: an interruption then leaves no checkpoint with half of its files.
                gone = each.path.with_name(f".{each.path.name.lstrip('.').removesuffix('.old')}.old")
                if gone != each.path:
                    each.path.rename(gone)
                shutil.rmtree(gone)
                freed += each.size
    return freed
