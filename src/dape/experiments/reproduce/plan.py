"""``dape reproduce`` for language models: one run per arm, model size, training length and seed. No torch here.

OUT/reproduce.yaml    the experiment and the scale
    runs/NAME/        a run; its name ends in a hash of all settings that change its numbers
    results.jsonl     the rows of all finished runs
    claims.json, claims.md, tables, figures
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypedDict

from dape.evaluation.config import LATE
from dape.experiments.grid import RUNS, Effort, Experiment, relative_data, saved_settings
from dape.experiments.job import ROWS
from dape.experiments.language import LanguageModelJob, language_effort, language_settings
from dape.experiments.reproduce.catalogue import Arm, PaperExperiment
from dape.experiments.reproduce.scales import Scale
from dape.files import new_folder, sha256_of, write_text
from dape.models.config import DecoderConfig
from dape.reading import as_record
from dape.results.records import read_rows, rows_text
from dape.training.run import RunConfig

SETTINGS = "reproduce.yaml"
DAPE_DEFAULTS = {"variant": "concat_residual", "hidden": 32}
"""An arm with these options is the same run as one without."""


@dataclass(frozen=True)
class Trial:
    arm: Arm
    size: str
    train_length: int
    """The paper's."""
    seed: int
    digest: str

    @property
    def name(self) -> str:
        words = [self.arm.method, self.arm.variant.replace("=", ""), self.size, f"train{self.train_length}"]
        return "-".join([*filter(None, words), f"seed{self.seed}", self.digest[:8]])


@dataclass(frozen=True, kw_only=True)
class Reproduction(Experiment[Trial]):
    experiment: PaperExperiment
    scale: Scale
    seeds: int
    data: str
    """The prepared folder."""
    data_name: str
    data_hash: str
    budget: float | None = None
    """Hours that seeds and steps were chosen for."""

    what: ClassVar[str] = "reproduction"
    settings_name: ClassVar[str] = SETTINGS
    inputs: ClassVar[tuple[str, ...]] = ("data",)

    # Runs ------------------------------------------------------------------------------------------------------------

    def runs(self) -> list[Trial]:
        """For each seed the slow runs first, so that cores do not wait long for the last run."""
        slow_first = sorted(self.experiment.arms, key=lambda arm: "dape" not in arm.method)
        return [
            self._trial(arm, size, length, seed)
            for seed in range(self.seeds)
            for size in self.experiment.sizes
            for length in self.experiment.train_lengths
            for arm in slow_first
        ]

    def _trial(self, arm: Arm, size: str, train_length: int, seed: int) -> Trial:
        train = self.scale.train(size, train_length)
        evaluation = self.scale.evaluation(self.experiment, train_length)
        options = {n: v for n, v in arm.options.items() if DAPE_DEFAULTS.get(n) != v}
        facts = language_settings(self.scale.model(size, train_length), train, evaluation)
        facts |= {"method": arm.method, "options": options, "seed": seed, "data": self.data_hash}
        return Trial(arm, size, train_length, seed, sha256_of(json.dumps(facts, sort_keys=True)))

    def model(self, run: Trial) -> DecoderConfig:
        shape = self.scale.model(run.size, run.train_length)
        return replace(shape, encoding=run.arm.method, encoding_options=dict(run.arm.options))

    def job(self, run: Trial, threads: int) -> LanguageModelJob:
        train = replace(self.scale.train(run.size, run.train_length), seed=run.seed)
        return LanguageModelJob(
            run=RunConfig(model=self.model(run), train=train, data=self.data, threads=threads),
            evaluation=self.scale.evaluation(self.experiment, run.train_length),
            data_hash=self.data_hash,
            device=self.device,
            threads=threads,
            variant=run.arm.variant,
            in_context=self.scale.in_context and self.scale.length(run.train_length) > max(LATE),
            extra={
                "experiment": self.experiment.id,
                "scale": self.scale.name,
                "model": run.size,
                "paper_train_length": run.train_length,
                "tokens": self.scale.tokens_seen(run.size, run.train_length),
            },
        )

    def effort(self, run: Trial) -> Effort:
        train = self.scale.train(run.size, run.train_length)
        evaluation = self.scale.evaluation(self.experiment, run.train_length)
        return language_effort(self.scale.model(run.size, run.train_length), train, evaluation)

    def introduction(self) -> list[str]:
        experiment = self.experiment
        return [f"{experiment.id}: {experiment.title} ({experiment.where} of the paper), scale {self.scale.name}"]

    def conditions(self) -> list[str]:
        return [f"text: {self.data_name}", *(f"reduced: {words}" for words in self.scale.reductions(self.experiment))]

    def reuse(self, folders: Sequence[Path]) -> int:
        """Copy runs with the same hash that other reproductions have finished. Returns how many."""
        count = 0
        for run in self.runs():
            found = None if self.folder(run).exists() else _finished_elsewhere(run, folders)
            if found is not None:
                self._copy(found, run)
                count += 1
        return count

    def _copy(self, source: Path, run: Trial) -> None:
        target = self.folder(run)
        target.parent.mkdir(parents=True, exist_ok=True)
        extra = {"experiment": self.experiment.id, "reused_from": source.name}
        rows = [
            replace(row, run=run.name, variant=run.arm.variant, extra={**row.extra, **extra})
            for row in read_rows(source / ROWS)
        ]
        with new_folder(target) as folder:
            shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(ROWS, ".lock"))
            write_text(folder / ROWS, rows_text(rows))

    # Hours -----------------------------------------------------------------------------------------------------------

    def budgeted(self, hours: float, *, seeds: int, steps: int) -> "Reproduction":
        return replace(self, budget=hours, seeds=seeds, scale=replace(self.scale, steps=steps))

    def saved_budget(self) -> "Budget | None":
        """The budget in the folder's settings, with the seeds and steps chosen for it."""
        known = saved_settings(self.out, SETTINGS).get("budget")
        return None if known is None else as_record(Budget, known, f"{self.out / SETTINGS}: budget")

    # Settings --------------------------------------------------------------------------------------------------------

    def check_jobs(self) -> None:
        """Nothing to check: the name of a run has a hash of its settings."""

    def shared_settings(self) -> dict[str, Any]:
        """Only the text. The names of runs have a hash of the other settings, so that other settings give other
        runs."""
        return {"data_hash": self.data_hash}

    def growing_settings(self, known: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "experiment": self.experiment.id,
            "scale": self.scale.name,
            "seeds": max(self.seeds, known.get("seeds", 0)),
            "data": relative_data(self.data, self.out),
            "data_name": self.data_name,
            **({} if self.budget is None else {"budget": self._budget()}),
        }

    def _budget(self) -> dict[str, Any]:
        return {"hours": self.budget, "seeds": self.seeds, "steps": self.scale.steps}


class Budget(TypedDict):
    """The entry ``budget`` of reproduce.yaml."""

    hours: float
    seeds: Annotated[int, range(1, 1 << 63)]
    steps: Annotated[int, range(1, 1 << 63)]


def _finished_elsewhere(run: Trial, folders: Sequence[Path]) -> Path | None:
    for folder in folders:
        for path in sorted((folder / RUNS).glob(f"*-{run.digest[:8]}")):
            if (path / ROWS).is_file():
                return path
    return None
