"""The plan of ``dape probe --train``: which runs there are, which are finished, what they have found. No torch here.

OUT/probe.yaml           the settings all runs share
    runs/METHOD-seedN/   a run: metrics.jsonl, checkpoints, rows.jsonl (written last), log.txt
    results.jsonl        the rows of all finished runs
    table.md, depth.png, depth.svg, pairs.png, pairs.svg
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from dape.config.load import read_yaml
from dape.errors import UsageError
from dape.evaluation.probe.config import RecallConfig
from dape.evaluation.probe.worker import Job
from dape.evaluation.records import Row, append_rows, read_rows
from dape.files import write_text
from dape.sweep.child import JOB, PROGRESS, ROWS
from dape.sweep.compare import Run
from dape.sweep.pool import Task
from dape.training.run import read_metrics

SETTINGS, RESULTS = "probe.yaml", "results.jsonl"
BACKWARD = 3.0
"""A token of training costs about as much as so many of testing."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    out: Path
    methods: tuple[str, ...]
    seeds: int
    config: RecallConfig
    device: str = "cpu"
    threads: int = 1

    # Runs ------------------------------------------------------------------------------------------------------------

    def runs(self) -> list[Run]:
        """Seed after seed; within one the slow runs first, so that no core waits long for the last of them."""
        methods = sorted(self.methods, key=lambda method: "dape" not in method)
        return [Run(method, seed) for seed in range(self.seeds) for method in methods]

    def folder(self, run: Run) -> Path:
        return self.out / "runs" / run.name

    def finished(self, run: Run) -> bool:
        return (self.folder(run) / ROWS).is_file()

    def task(self, run: Run) -> Task:
        """Write down what the run is to do, for the child to read."""
        folder = self.folder(run)
        # A run that has begun goes on with as many threads as before: another number may change the last bits.
        threads = Job.read(folder).threads if (folder / JOB).is_file() else self.threads
        Job(config=self.config, method=run.method, seed=run.seed, device=self.device, threads=threads).write(folder)
        return Task(run.name, ("dape.evaluation.probe.worker", str(folder)), folder / "log.txt")

    def share_done(self, run: Run) -> float:
        """Roughly how much of a run's work is done, by tokens."""
        if self.finished(run):
            return 1.0
        config, taken = self.config, self.last_metrics(run).get("step", 0)
        training = BACKWARD * config.batch * config.train_length
        tests = 1 + len({config.pairs, *config.test_pairs})
        tested = [length for length in config.lengths if length < self.testing(run)]
        done = training * taken + tests * config.samples * sum(tested)
        return min(done / (training * config.steps + tests * config.samples * sum(config.lengths)), 0.999)

    def last_metrics(self, run: Run) -> dict[str, Any]:
        """Step, loss and accuracy of the last step that was logged."""
        lines = read_metrics(self.folder(run))
        return lines[-1] if lines else {}

    def testing(self, run: Run) -> int:
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
        """Create the folder, or make sure that the one there has the same settings; methods and seeds may be added."""
        path = self.out / SETTINGS
        known: dict[str, Any] = read_yaml(path) if path.exists() else {}
        shared = json.loads(json.dumps(asdict(self.config)))
        if known:
            self._check_same(known.get("shared", {}), shared)
        elif self.out.exists() and any(p.name != ".lock" for p in self.out.iterdir()):
            raise UsageError(f"--out {self.out}: the folder is not empty and holds no probe; choose another")
        self.out.mkdir(parents=True, exist_ok=True)
        settings = {
            "methods": list(dict.fromkeys([*known.get("methods", []), *self.methods])),
            "seeds": max(self.seeds, known.get("seeds", 0)),
            "shared": shared,
        }
        write_text(path, yaml.safe_dump(settings, sort_keys=False))

    def _check_same(self, saved: dict[str, Any], now: dict[str, Any]) -> None:
        names = dict.fromkeys([*saved, *now])
        changed = [
            f"{name} was {saved.get(name)}, now {now.get(name)}" for name in names if saved.get(name) != now.get(name)
        ]
        if changed:
            raise UsageError(
                f"--out {self.out} holds a probe with other settings: {'; '.join(changed)}. "
                "Results would not be comparable; use another --out."
            )
