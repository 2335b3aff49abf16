"""The plan of ``dape study adapters``: the models first, then what is done to them. No torch here.

OUT/study.yaml              the settings all runs share
    runs/base-seedN/        a model: model/ (a folder of the library), rows.jsonl
    runs/TREATMENT-atLENGTH-seedN/
    results.jsonl, table.md, curves.png, curves.svg
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from dape.experiments.adapters.config import BASE, StudyConfig, find
from dape.experiments.adapters.job import AdapterJob
from dape.experiments.grid import Effort, Experiment, relative_data, united
from dape.results.numbers import count
from dape.results.records import Row


@dataclass(frozen=True)
class Run:
    treatment: str
    length: int
    """Of the text it is tuned on; 0 where nothing is."""
    seed: int

    @property
    def name(self) -> str:
        return f"{self.treatment}{f'-at{self.length}' if self.length else ''}-seed{self.seed}"


@dataclass(frozen=True, kw_only=True)
class Study(Experiment[Run]):
    config: StudyConfig
    treatments: tuple[str, ...]
    lengths: tuple[int, ...]
    """At which treatments are tuned."""
    seeds: int
    data: str
    data_name: str
    data_hash: str
    bases_only: bool = False
    """The models alone: everything else needs them."""

    what: ClassVar[str] = "study"
    settings_name: ClassVar[str] = "study.yaml"
    inputs: ClassVar[tuple[str, ...]] = ("data",)

    def runs(self) -> list[Run]:
        bases = [Run(BASE, 0, seed) for seed in range(self.seeds)]
        if self.bases_only:
            return bases
        return bases + [
            Run(name, length, seed)
            for seed in range(self.seeds)
            for name in self.treatments
            for length in (self.lengths if find(name).trained != "nothing" else (0,))
        ]

    def job(self, run: Run, threads: int) -> AdapterJob:
        return AdapterJob(
            config=self.config,
            treatment=run.treatment,
            length=run.length,
            seed=run.seed,
            base=str((self.folder(Run(BASE, 0, run.seed)) / "model").resolve()),
            data=self.data,
            data_hash=self.data_hash,
            device=self.device,
            threads=threads,
        )

    def effort(self, run: Run) -> Effort:
        config = self.config
        steps, tokens = (
            (config.base_steps, config.base_tokens) if run.treatment == BASE else (config.steps, config.tokens)
        )
        tests = {length: float(config.windows * length) for length in config.lengths}
        return Effort(steps if run.treatment == BASE or run.length else 0, float(tokens), tests)

    def found(self, rows: list[Row]) -> str:
        whole = [row for row in rows if "depth" not in row.extra]
        return f"{whole[0].metric} " + " ".join(f"{row.length}: {row.value:.4g}" for row in whole)

    def conditions(self) -> list[str]:
        config = self.config
        return [
            f"models: {config.layers} layers, width {config.width}, {config.heads} heads, {config.base_steps} steps at "
            f"{config.train_length} tokens of {self.data_name}",
            f"treatments: {config.steps} steps of {config.tokens} tokens, at {', '.join(map(str, self.lengths))}",
            f"test: {', '.join(map(str, config.lengths))} tokens, {count(config.windows, 'window')}",
        ]

    def shared_settings(self) -> dict[str, Any]:
        return {"config": asdict(self.config), "data_hash": self.data_hash}

    def growing_settings(self, known: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "treatments": united(known, "treatments", self.treatments),
            "lengths": united(known, "lengths", self.lengths),
            "seeds": max(self.seeds, known.get("seeds", 0)),
            "data": relative_data(self.data, self.out),
            "data_name": self.data_name,
        }
