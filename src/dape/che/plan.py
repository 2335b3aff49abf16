"""The plan of ``dape che``: which runs there are, which are finished, what they have found. No torch here.

OUT/che.yaml                          the settings all runs share
    runs/TASK-METHOD-lrRATE-seedN/    a run: metrics.jsonl, checkpoints, rows.jsonl (written last), log.txt
    results.jsonl                     the rows of all finished runs
    table.md, scores.png, scores.svg, lengths.png, lengths.svg
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from dape.che.config import CheConfig, Subject
from dape.che.worker import Job
from dape.config.load import read_yaml
from dape.errors import UsageError
from dape.evaluation.records import Row, append_rows, read_rows
from dape.files import write_text
from dape.sweep.child import JOB, PROGRESS, ROWS
from dape.sweep.pool import Task
from dape.training.run import read_metrics

SETTINGS, RESULTS = "che.yaml", "results.jsonl"
BACKWARD = 3.0
"""A token of training costs about as much as so many of testing."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    out: Path
    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    rates: tuple[float, ...]
    seeds: int
    config: CheConfig
    budget: float | None = None
    """Minutes for which steps and lengths were planned."""
    device: str = "cpu"
    threads: int = 1

    # Runs ------------------------------------------------------------------------------------------------------------

    def runs(self) -> list[Subject]:
        """Seed after seed; within one the slow runs first, so that no core waits long for the last of them."""
        methods = sorted(self.methods, key=lambda method: "dape" not in method)
        return [
            Subject(task=task, method=method, seed=seed, lr=lr)
            for seed in range(self.seeds)
            for task in self.tasks
            for method in methods
            for lr in self.rates
        ]

    def folder(self, run: Subject) -> Path:
        return self.out / "runs" / run.name

    def finished(self, run: Subject) -> bool:
        return (self.folder(run) / ROWS).is_file()

    def task(self, run: Subject) -> Task:
        """Write down what the run is to do, for the child to read."""
        folder = self.folder(run)
        # A run that has begun goes on with as many threads as before: another number may change the last bits.
        threads = Job.read(folder).threads if (folder / JOB).is_file() else self.threads
        Job(config=self.config, **asdict(run), device=self.device, threads=threads).write(folder)
        return Task(run.name, ("dape.che.worker", str(folder)), folder / "log.txt")

    def share_done(self, run: Subject) -> float:
        """Roughly how much of a run's work is done, by tokens of input."""
        if self.finished(run):
            return 1.0
        config = self.config
        step = BACKWARD * config.batch * (1 + config.train_length) / 2
        tested = [length for length in config.lengths if length < self.testing(run)]
        done = step * self.last_metrics(run).get("step", 0) + config.samples * sum(tested)
        return min(done / (step * config.steps + config.samples * sum(config.lengths)), 0.999)

    def last_metrics(self, run: Subject) -> dict[str, Any]:
        """Step, loss and accuracy of the last step that was logged."""
        lines = read_metrics(self.folder(run))
        return lines[-1] if lines else {}

    def testing(self, run: Subject) -> int:
        """The length a run is tested at just now; 0 before."""
        try:
            return json.loads((self.folder(run) / PROGRESS).read_text(encoding="utf-8"))["length"]
        except (OSError, ValueError):
            return 0

    # Results ---------------------------------------------------------------------------------------------------------

    def collect(self) -> list[Row]:
        """All rows of these runs; those that finished runs have not delivered yet are appended first."""
        results = self.out / RESULTS
        rows = read_rows(results) if results.exists() else []
        delivered = {row.run for row in rows}
        for run in self.runs():
            if self.finished(run) and run.name not in delivered:
                new = read_rows(self.folder(run) / ROWS)
                append_rows(results, new)
                rows += new
        wanted = {run.name for run in self.runs()}
        return [row for row in rows if row.run in wanted]

    # Settings --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Create the folder, or make sure that the one there has the same settings; tasks, methods, rates and seeds may
        be added."""
        known = saved_settings(self.out)
        shared = json.loads(json.dumps(asdict(self.config)))
        if known:
            self._check_same(known.get("shared", {}), shared)
        elif self.out.exists() and any(p.name != ".lock" for p in self.out.iterdir()):
            raise UsageError(f"--out {self.out}: the folder is not empty and holds no CHE benchmark; choose another")
        self.out.mkdir(parents=True, exist_ok=True)
        settings = {
            name: list(dict.fromkeys([*known.get(name, []), *getattr(self, name)]))
            for name in ("tasks", "methods", "rates")
        }
        settings |= {"seeds": max(self.seeds, known.get("seeds", 0)), "budget": self.budget, "shared": shared}
        write_text(self.out / SETTINGS, yaml.safe_dump(settings, sort_keys=False))

    def _check_same(self, saved: dict[str, Any], now: dict[str, Any]) -> None:
        names = dict.fromkeys([*saved, *now])
        changed = [
            f"{name} was {_short(saved.get(name))}, now {_short(now.get(name))}"
            for name in names
            if saved.get(name) != now.get(name)
        ]
        if changed:
            raise UsageError(
                f"--out {self.out} holds a CHE benchmark with other settings: {'; '.join(changed)}. "
                "Results would not be comparable; use another --out."
            )


def saved_settings(out: Path) -> dict[str, Any]:
    path = out / SETTINGS
    return read_yaml(path) if path.exists() else {}


def _short(value: Any) -> str:
    return in_short(value) if isinstance(value, list) else str(value)


def in_short(lengths: Sequence[int]) -> str:
    """41, 42 ... 500: the first two, the last, and how many."""
    if len(lengths) <= 4:
        return ", ".join(map(str, lengths))
    return f"{lengths[0]}, {lengths[1]} ... {lengths[-1]} ({len(lengths)} lengths)"
