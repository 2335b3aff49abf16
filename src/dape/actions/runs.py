"""Folders of runs: found, described, compared, cleaned up. What ``dape runs`` does. No torch here.

A run is a folder with ``config.yaml`` or ``job.json``; those of a comparison or another grid lie in its ``runs/``.
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
"""Levels of folders that are looked into."""
JUST_NOW = 120
"""Seconds: who has logged since then is taken to be running."""
LEFTOVER = re.compile(r"\.step-\d+.*\.(tmp|old)|damaged-step-\d{8,}")
"""What an interrupted save, or a checkpoint that was damaged, has left."""


@dataclass(frozen=True)
class FoundRun:
    """What the files of a run say about it."""

    folder: Path
    settings: Mapping[str, Any]
    """By section.name."""
    metrics: Sequence[Mapping[str, Any]]
    rows: Sequence[Row]
    """Of its tests, if it belongs to a grid and is finished."""
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
        """On held-out text if it was measured, else in training: the last of them."""
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
        """The setting of one of these names, in whatever section."""
        return next((v for name in names for key, v in self.settings.items() if key.rpartition(".")[2] == name), None)


def find_runs(top: Path) -> list[FoundRun]:
    """The run that ``top`` is, or all runs below it, by name."""
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
    """Bytes of a file, or of all files of a folder; links count as nothing."""
    if path.is_symlink():
        return 0
    if not path.is_dir():
        return path.stat().st_size
    with os.scandir(path) as entries:
        return sum(size_of(Path(entry.path)) for entry in entries)


def sizes(run: FoundRun) -> dict[str, int]:
    """By what lies in the folder, the largest first."""
    found = {path.name: size_of(path) for path in run.folder.iterdir()}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def differences(runs: Sequence[FoundRun]) -> dict[str, list[Any]]:
    """The settings in which they differ, and the value of each."""
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
    """What can go: checkpoints before the newest of each run, and what interrupted saves have left. Runs can still be
    evaluated and continued.

    ``weights``: also the last checkpoint of runs of a grid that are finished. Their results stay, their models do not.
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
    """Delete them, unless a process of ours works in their folder; returns the bytes that became free."""
    freed = 0
    by_run: dict[Path, list[Doomed]] = {}
    for each in doomed:
        by_run.setdefault(each.path.parent.parent, []).append(each)
    for run, of_run in by_run.items():
        in_grid = run.parent.name == RUNS and any(run.parent.parent.glob("*.yaml"))
        with locked(run.parent.parent if in_grid else run):
            for each in of_run:
                # Renamed first, so that an interruption leaves no checkpoint with half its files.
                gone = each.path.with_name(f".{each.path.name.lstrip('.').removesuffix('.old')}.old")
                if gone != each.path:
                    each.path.rename(gone)
                shutil.rmtree(gone)
                freed += each.size
    return freed
