"""Small models, each trained on one generated test and tested beyond its training length. No torch here.

OUT/tests.yaml                  the settings all runs share
    runs/TEST-METHOD-seedN/     a run: metrics.jsonl, checkpoints, rows.jsonl (written last), log.txt
    results.jsonl               the rows of all finished runs
    table.md, tests.png, tests.svg
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dape.experiments.grid import Effort, Experiment, united
from dape.experiments.job import Job, Stop, Test
from dape.files import sha256_of
from dape.results.records import Row
from dape.tasks.abilities.config import AbilityConfig

if TYPE_CHECKING:
    from dape.training.abilities import AbilityTrainer

SETTINGS = "tests.yaml"


@dataclass(frozen=True, kw_only=True)
class AbilityJob(Job):
    config: AbilityConfig
    test: str
    method: str
    seed: int

    kind: ClassVar[str] = "ability"

    def learn(self, folder: Path, stop: Stop) -> "AbilityTrainer | None":
        import torch

        from dape.training.abilities import AbilityTrainer

        device = torch.device(self.device)
        trainer = AbilityTrainer(folder, self.config, test=self.test, method=self.method, seed=self.seed, device=device)
        return trainer if trainer.run(stop=stop) else None

    def tests(self, learned: "AbilityTrainer", run: str) -> Iterator[Test]:
        learned.model.eval()
        for length in sorted(self.config.test_lengths):
            yield Test(length, "accuracy", lambda _, length=length: [self.row(learned, run, length)])

    def row(self, learned: "AbilityTrainer", run: str, length: int) -> Row:
        from dape.evaluation.recall import correct
        from dape.provenance import provenance
        from dape.tasks.abilities.task import test_examples

        examples = test_examples(learned.task.ability, self.config, length)
        right = correct(learned.model, examples)
        return Row(
            run=run,
            method=self.method,
            seed=self.seed,
            train_length=self.config.train_length,
            length=length,
            metric="accuracy",
            value=float(right.mean()),
            scored_tokens=right.size,
            protocol=self.test,
            data_hash=sha256_of(json.dumps(["abilities", 2, self.test, self.config.samples])),
            windows=self.config.samples,
            step=learned.step,
            tokenizer=f"symbols:{learned.task.ability.vocabulary}",
            extra={**provenance(), "device": self.device, "train_tokens": self.config.train_tokens},
        )


@dataclass(frozen=True)
class AbilityRun:
    test: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.test}-{self.method}-seed{self.seed}"


@dataclass(frozen=True, kw_only=True)
class Abilities(Experiment[AbilityRun]):
    """Every test with every method and seed."""

    config: AbilityConfig
    methods: tuple[str, ...]
    seeds: int

    what: ClassVar[str] = "set of tests"
    settings_name: ClassVar[str] = SETTINGS

    def runs(self) -> list[AbilityRun]:
        return [
            AbilityRun(test, method, seed)
            for seed in range(self.seeds)
            for test in self.config.tests
            for method in self.methods
        ]

    def axes(self) -> dict[str, int]:
        return {"test": len(self.config.tests), "encoding": len(self.methods), "seed": self.seeds}

    def job(self, run: AbilityRun, threads: int) -> AbilityJob:
        config = AbilityConfig(**{**asdict(self.config), "tests": (run.test,)})
        facts = {"test": run.test, "method": run.method, "seed": run.seed}
        return AbilityJob(config=config, device=self.device, threads=threads, **facts)

    def effort(self, run: AbilityRun) -> Effort:
        config = self.config
        tests = {length: float(config.samples * length) for length in config.test_lengths}
        return Effort(config.steps, float(config.batch * config.train_length), tests)

    def found(self, rows: list[Row]) -> str:
        return "accuracy " + " ".join(f"{row.length}: {100 * row.value:.0f}%" for row in rows)

    def conditions(self) -> list[str]:
        config = self.config
        return [
            f"train: {config.steps} steps of {config.batch} x {config.train_length} tokens, {config.train_tokens:,} at "
            f"most; {config.layers} layers, width {config.width}, {config.heads} heads",
            f"test: {', '.join(map(str, config.test_lengths))} tokens, {config.samples} sequences each",
        ]

    def shared_settings(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self.config).items() if name != "tests"}

    def growing_settings(self, known: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "tasks": united(known, "tasks", self.config.tests),
            "methods": united(known, "methods", self.methods),
            "seeds": max(self.seeds, known.get("seeds", 0)),
        }
