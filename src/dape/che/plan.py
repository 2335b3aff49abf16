"""The plan of ``dape che``: which runs there are, which are finished, what they have found. No torch here.

OUT/che.yaml                          the settings all runs share
    runs/TASK-METHOD-lrRATE-seedN/    a run: metrics.jsonl, checkpoints, rows.jsonl (written last), log.txt
    results.jsonl                     the rows of all finished runs
    table.md, scores.png, scores.svg, lengths.png, lengths.svg
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from dape.che.config import CheConfig, Subject
from dape.che.worker import Job
from dape.sweep.grid import Effort, Grid, united

SETTINGS = "che.yaml"


@dataclass(frozen=True, kw_only=True)
class Plan(Grid[Subject]):
    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    rates: tuple[float, ...]
    seeds: int
    config: CheConfig
    budget: float | None = None
    """Minutes for which steps and lengths were planned."""

    what: ClassVar[str] = "CHE benchmark"
    settings_name: ClassVar[str] = SETTINGS
    worker: ClassVar[str] = "dape.che.worker"

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

    def job(self, run: Subject, threads: int) -> Job:
        return Job(config=self.config, **asdict(run), device=self.device, threads=threads)

    def effort(self, run: Subject) -> Effort:
        """By tokens of input."""
        config = self.config
        tests = {length: float(config.samples * length) for length in config.lengths}
        return Effort(config.steps, config.batch * (1 + config.train_length) / 2, tests)

    def shared_settings(self) -> dict[str, Any]:
        return asdict(self.config)

    def growing_settings(self, known: Mapping[str, Any]) -> dict[str, Any]:
        grown = {name: united(known, name, getattr(self, name)) for name in ("tasks", "methods", "rates")}
        return {**grown, "seeds": max(self.seeds, known.get("seeds", 0)), "budget": self.budget}
