"""The experiment of ``dape compare``: language models with different encodings. No torch here.

OUT/compare.yaml      the settings all runs share
    runs/METHOD-seedN/   a run: config.yaml, metrics.jsonl, checkpoints, rows.jsonl (written last), log.txt
    results.jsonl     the rows of all finished runs
    table.md, summary.md, curves.png, curves.svg
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from dape.evaluation.config import ENOUGH_WINDOWS, EvalConfig
from dape.experiments.grid import Effort, Experiment, changes, relative_data, saved_settings, united
from dape.experiments.language import LanguageModelJob, language_effort, language_settings
from dape.models.config import DecoderConfig
from dape.results.numbers import count
from dape.training.config import TrainConfig
from dape.training.run import FREE_TO_CHANGE, RunConfig

SETTINGS = "compare.yaml"


@dataclass(frozen=True)
class Run:
    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.method}-seed{self.seed}"


@dataclass(frozen=True, kw_only=True)
class MethodsAndSeeds(Experiment[Run]):
    """Every method with every seed."""

    methods: tuple[str, ...]
    seeds: int

    def runs(self) -> list[Run]:
        """For each seed the slow runs first, so that cores do not wait long for the last run."""
        methods = sorted(self.methods, key=lambda method: "dape" not in method)
        return [Run(method, seed) for seed in range(self.seeds) for method in methods]

    def axes(self) -> dict[str, int]:
        return {"encoding": len(self.methods), "seed": self.seeds}

    def growing_settings(self, known: Mapping[str, Any]) -> dict[str, Any]:
        return {"methods": united(known, "methods", self.methods), "seeds": max(self.seeds, known.get("seeds", 0))}


@dataclass(frozen=True, kw_only=True)
class Comparison(MethodsAndSeeds):
    model: DecoderConfig
    """The model of every run, except for the encoding."""
    train: TrainConfig
    """The training of every run, except for the seed."""
    evaluation: EvalConfig
    data: str
    """The prepared folder."""
    data_name: str
    data_hash: str

    what: ClassVar[str] = "comparison"
    settings_name: ClassVar[str] = SETTINGS
    inputs: ClassVar[tuple[str, ...]] = ("data",)

    def job(self, run: Run, threads: int) -> LanguageModelJob:
        config = RunConfig(
            model=model_for(run.method, self.model),
            train=replace(self.train, seed=run.seed),
            data=self.data,
            threads=threads,
        )
        return LanguageModelJob(
            run=config, evaluation=self.evaluation, data_hash=self.data_hash, device=self.device, threads=threads
        )

    def effort(self, run: Run) -> Effort:
        return language_effort(self.model, self.train, self.evaluation)

    def conditions(self) -> list[str]:
        model, train, evaluation = self.model, self.train, self.evaluation
        return [
            f"train: {train.steps} steps of {train.batch} x {model.train_length} tokens of {self.data_name} "
            f"({self.data_hash[:12]}), {count(model.layers, 'layer')}, width {model.width}, "
            f"{count(model.heads, 'head')}",
            f"test: the last {evaluation.last_k} of {', '.join(map(str, evaluation.lengths))} tokens, "
            f"{count(evaluation.windows, 'window')}, {evaluation.mode}, reach {evaluation.reach}",
        ]

    # Settings --------------------------------------------------------------------------------------------------------

    def shared_settings(self) -> dict[str, Any]:
        return {**language_settings(self.model, self.train, self.evaluation), "data_hash": self.data_hash}

    def growing_settings(self, known: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "methods": united(known, "methods", self.methods),
            "encoding_options": {**known.get("encoding_options", {}), **self.model.encoding_options},
            "seeds": max(self.seeds, known.get("seeds", 0)),
            "logging": {name: getattr(self.train, name) for name in sorted(FREE_TO_CHANGE)},
            "data": relative_data(self.data, self.out),
            "data_name": self.data_name,
        }

    def changes(self, known: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
        """Also compares the options of encodings, for methods that the folder already has."""
        changed = super().changes(known)
        before = replace(self.model, encoding_options=known.get("encoding_options", {}))
        for method in set(self.methods) & set(known.get("methods", [])):
            old, new = (model_for(method, model).encoding_options for model in (before, self.model))
            changed += [(f"{method}.{name}", *values) for name, *values in changes("options", old, new)]
        return changed


def windows_in(out: Path) -> int:
    """The number of windows of the comparison in this folder, or the default for a new one."""
    return _saved_evaluation(out).get("windows", ENOUGH_WINDOWS)


def evaluation_in(out: Path, evaluation: EvalConfig) -> EvalConfig:
    """The evaluation with the reach that folders used before the reach was a setting: the greatest length."""
    known = _saved_evaluation(out)
    old = known and "reach" not in known and evaluation.reach is None
    return replace(evaluation, reach=max(evaluation.lengths)) if old else evaluation


def _saved_evaluation(out: Path) -> dict[str, Any]:
    known = saved_settings(out, SETTINGS).get("shared", {}).get("evaluation")
    return known if isinstance(known, dict) else {}


def model_for(method: str, model: DecoderConfig) -> DecoderConfig:
    """The model with that encoding, and with the options for all methods and those given as METHOD.OPTION."""
    given = model.encoding_options
    options = {name: value for name, value in given.items() if "." not in name}
    options |= {n.removeprefix(f"{method}."): value for n, value in given.items() if n.startswith(f"{method}.")}
    return replace(model, encoding=method, encoding_options=options)
