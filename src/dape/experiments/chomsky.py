"""The Chomsky-hierarchy benchmark: tasks by methods, rates and seeds (``dape che``). No torch here.

OUT/che.yaml                          the settings all runs share
    runs/TASK-METHOD-lrRATE-seedN/    a run: metrics.jsonl, checkpoints, rows.jsonl (written last), log.txt
    results.jsonl                     the rows of all finished runs
    table.md, scores.png, scores.svg, lengths.png, lengths.svg
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dape.errors import UsageError
from dape.experiments.executor import START_SECONDS
from dape.experiments.grid import Effort, Experiment, in_short, united
from dape.experiments.job import Job, Stop, Test
from dape.results.numbers import count
from dape.results.records import Row
from dape.tasks.chomsky.config import PAPER_RATES, CheConfig, Subject, reductions

if TYPE_CHECKING:
    from dape.training.chomsky import ChomskyTrainer

SETTINGS = "che.yaml"
SIDE_BY_SIDE = 0.8
"""Speed of a run beside others, relative to a run alone: they share memory and caches."""


def least_minutes(runs: int, jobs: int) -> float:
    """Minutes to start the processes of all runs, ``jobs`` at a time."""
    return START_SECONDS * runs / (60 * min(jobs, runs))


def too_little(budget: float, runs: int, minutes: float, why: str) -> UsageError:
    """The error for a budget that is less than the needed minutes."""
    needed = count(math.ceil(2 * minutes) / 2, "minute")
    return UsageError(
        f"`budget` {budget:g}: {count(runs, 'run')} would take at least {needed} on this machine {why}; "
        "name fewer `tasks`, `methods` or `seeds`, or allow more time"
    )


@dataclass(frozen=True, kw_only=True)
class ChomskyJob(Job):
    config: CheConfig
    task: str
    method: str
    seed: int
    lr: float

    kind: ClassVar[str] = "chomsky"

    @property
    def subject(self) -> Subject:
        return Subject(task=self.task, method=self.method, seed=self.seed, lr=self.lr)

    def learn(self, folder: Path, stop: Stop) -> "ChomskyTrainer | None":
        import torch

        from dape.training.chomsky import ChomskyTrainer

        trainer = ChomskyTrainer(folder, self.config, self.subject, torch.device(self.device))
        return trainer if trainer.run(stop=stop) else None

    def tests(self, learned: "ChomskyTrainer", run: str) -> Iterator[Test]:
        from dape.evaluation.chomsky import as_rows, measure_at
        from dape.provenance import provenance

        model, examples = learned.model.eval(), learned.task.examples
        extra = {**provenance(), "device": self.device}

        def rows(length: int) -> "list[Row]":
            measured = measure_at(model, self.config, examples, length)
            return as_rows(measured, self.config, self.subject, step=learned.step, extra=extra)

        for length in self.config.lengths:
            yield Test(length, "accuracy", lambda _, length=length: rows(length))


@dataclass(frozen=True, kw_only=True)
class Chomsky(Experiment[Subject]):
    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    rates: tuple[float, ...]
    seeds: int
    config: CheConfig
    budget: float | None = None
    """Minutes that steps and test lengths were chosen for."""

    what: ClassVar[str] = "CHE benchmark"
    settings_name: ClassVar[str] = SETTINGS

    def runs(self) -> list[Subject]:
        """For each seed the slow runs first, so that cores do not wait long for the last run."""
        methods = sorted(self.methods, key=lambda method: "dape" not in method)
        return [
            Subject(task=task, method=method, seed=seed, lr=lr)
            for seed in range(self.seeds)
            for task in self.tasks
            for method in methods
            for lr in self.rates
        ]

    def job(self, run: Subject, threads: int) -> ChomskyJob:
        return ChomskyJob(config=self.config, **asdict(run), device=self.device, threads=threads)

    def effort(self, run: Subject) -> Effort:
        """Counted in tokens of the input."""
        config = self.config
        tests = {length: float(config.samples * length) for length in config.lengths}
        return Effort(config.steps, config.batch * (1 + config.train_length) / 2, tests)

    def found(self, rows: list[Row]) -> str:
        from dape.evaluation.chomsky_scores import runs_of

        config = self.config
        (by_rate,) = runs_of(rows, config).values()
        (found,) = by_rate.values()
        inside, beyond = 100 * found.familiar(config)[0], 100 * found.score(config)
        first, *_, last = (config.scored_lengths[0], *config.scored_lengths)
        return f"accuracy {inside:.1f}% at 1-{config.train_length}, {beyond:.1f}% at {first}-{last}"

    def axes(self) -> dict[str, int]:
        return {"task": len(self.tasks), "encoding": len(self.methods), "rate": len(self.rates), "seed": self.seeds}

    def conditions(self) -> list[str]:
        config = self.config
        return [
            f"train: {config.steps} steps of {config.batch} examples, lengths 1 to {config.train_length}; "
            f"{config.layers} layers, width {config.width}, {config.heads} heads (scale {config.scale})",
            f"test: {config.samples} examples at lengths {in_short(config.familiar_lengths)} to choose the rate, "
            f"{in_short(config.scored_lengths)} for the score",
            *(f"reduced: {text}" for text in self.reduced()),
        ]

    def reduced(self) -> list[str]:
        """Descriptions of what is less than in the paper."""
        return reductions(self.config, seeds=self.seeds, rates=self.rates, all_rates=len(PAPER_RATES))

    def shared_settings(self) -> dict[str, Any]:
        return asdict(self.config)

    def growing_settings(self, known: Mapping[str, Any]) -> dict[str, Any]:
        grown = {name: united(known, name, getattr(self, name)) for name in ("tasks", "methods", "rates")}
        return {**grown, "seeds": max(self.seeds, known.get("seeds", 0)), "budget": self.budget}
