"""The plan of ``dape compare``: which runs there are, which are finished, and what they have found. No torch here.

OUT/compare.yaml      the settings all runs share
    runs/METHOD-seedN/   a run: config.yaml, metrics.jsonl, checkpoints, rows.jsonl (written last), log.txt
    results.jsonl     the rows of all finished runs
    table.md, summary.md, curves.png, curves.svg
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from dape.config.load import read_yaml
from dape.errors import UsageError
from dape.evaluation.config import EvalConfig
from dape.evaluation.records import Row, append_rows, read_rows
from dape.files import write_text
from dape.models.config import DecoderConfig
from dape.sweep.child import PROGRESS, ROWS
from dape.sweep.pool import Task
from dape.sweep.worker import Job
from dape.training.config import TrainConfig
from dape.training.run import CONFIG, FREE_TO_CHANGE, RunConfig, read_metrics

SETTINGS, RESULTS = "compare.yaml", "results.jsonl"


@dataclass(frozen=True)
class Run:
    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.method}-seed{self.seed}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    out: Path
    methods: tuple[str, ...]
    seeds: int
    model: DecoderConfig
    """As every run has it, apart from the encoding."""
    train: TrainConfig
    """As every run has it, apart from the seed."""
    evaluation: EvalConfig
    data: str
    """The prepared folder."""
    data_name: str
    data_hash: str
    device: str
    threads: int

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
        begun = (folder / CONFIG).is_file()
        job = Job(
            run=RunConfig(
                model=model_for(run.method, self.model),
                train=replace(self.train, seed=run.seed),
                data=self.data,
                threads=RunConfig.read(folder).threads if begun else self.threads,
            ),
            evaluation=self.evaluation,
            data=self.data,
            data_hash=self.data_hash,
            device=self.device,
        )
        job.write(folder)
        return Task(run.name, ("dape.sweep.worker", str(folder)), folder / "log.txt")

    def share_done(self, run: Run) -> float:
        """Roughly how much of a run's work is done; evaluation counts by the tokens it reads."""
        if self.finished(run):
            return 1.0
        taken = max((line["step"] for line in read_metrics(self.folder(run))), default=0)
        train_tokens = 3.0 * self.train.steps * self.train.batch * self.model.train_length
        eval_tokens = float(sum(self.evaluation.lengths) * self.evaluation.windows)
        done = train_tokens * taken / self.train.steps
        now = self.evaluating(run)
        if now is not None:
            before = sum(length for length in self.evaluation.lengths if length < now["length"])
            done += self.evaluation.windows * (before + now["length"] * now["done"] / now["total"])
        return min(done / (train_tokens + eval_tokens), 0.999)

    def evaluating(self, run: Run) -> dict[str, int] | None:
        """What a run that has been trained is measuring now."""
        try:
            return json.loads((self.folder(run) / PROGRESS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    # Results ---------------------------------------------------------------------------------------------------------

    @property
    def results(self) -> Path:
        return self.out / RESULTS

    def collect(self) -> list[Row]:
        """All rows of this comparison; those that finished runs have not delivered yet are appended first."""
        rows = read_rows(self.results) if self.results.exists() else []
        delivered = {row.run for row in rows}
        for run in self.runs():
            if self.finished(run) and run.name not in delivered:
                new = read_rows(self.folder(run) / ROWS)
                append_rows(self.results, new)
                rows += new
        wanted = {run.name for run in self.runs()}
        return [row for row in rows if row.run in wanted]

    # Settings --------------------------------------------------------------------------------------------------------

    def shared_settings(self) -> dict[str, Any]:
        """What all runs have in common, as plain data."""
        model, train, evaluation = asdict(self.model), asdict(self.train), asdict(self.evaluation)
        for name in ("encoding", "encoding_options", "vocabulary"):
            model.pop(name)
        for name in ("seed", *FREE_TO_CHANGE):
            train.pop(name)
        settings = {"model": model, "train": train, "evaluation": evaluation, "data_hash": self.data_hash}
        return json.loads(json.dumps(settings))

    def begin(self) -> None:
        """Create the folder, or make sure that the one there is the same comparison."""
        path = self.out / SETTINGS
        if path.exists():
            self._check_same(read_yaml(path))
        else:
            occupied = self.out.exists() and any(p.name != ".lock" and p.name != "data" for p in self.out.iterdir())
            if occupied:
                raise UsageError(f"--out {self.out}: the folder is not empty and holds no comparison; choose another")
        self.out.mkdir(parents=True, exist_ok=True)
        known = read_yaml(path) if path.exists() else {}
        methods = list(dict.fromkeys([*known.get("methods", []), *self.methods]))
        settings = {
            "methods": methods,
            "encoding_options": {**known.get("encoding_options", {}), **self.model.encoding_options},
            "seeds": max(self.seeds, known.get("seeds", 0)),
            "logging": {name: getattr(self.train, name) for name in sorted(FREE_TO_CHANGE)},
            "data": self._relative_data(),
            "data_name": self.data_name,
            "shared": self.shared_settings(),
        }
        write_text(path, yaml.safe_dump(settings, sort_keys=False))

    def _relative_data(self) -> str:
        """Relative to the folder where it lies inside, so that the folder can be moved."""
        data, out = Path(self.data), self.out.resolve()
        return str(data.relative_to(out)) if data.is_relative_to(out) else str(data)

    def _check_same(self, saved: dict[str, Any]) -> None:
        now, then = self.shared_settings(), saved.get("shared", {})
        changed = [change for section in now for change in _changes(section, then.get(section), now[section])]
        options = replace(self.model, encoding_options=saved.get("encoding_options", {}))
        for method in set(self.methods) & set(saved.get("methods", [])):
            old, new = (model_for(method, model).encoding_options for model in (options, self.model))
            changed += [(f"{method}.{name}", *values) for name, *values in _changes("options", old, new)]
        if changed:
            raise UsageError(
                f"--out {self.out} holds a comparison with other settings: "
                f"{'; '.join(f'{name} was {old!r}, now {new!r}' for name, old, new in changed)}. "
                "Results would not be comparable; use another --out."
            )


def model_for(method: str, model: DecoderConfig) -> DecoderConfig:
    """With that encoding, and of its options those for all methods and those given as METHOD.OPTION."""
    given = model.encoding_options
    options = {name: value for name, value in given.items() if "." not in name}
    options |= {n.removeprefix(f"{method}."): value for n, value in given.items() if n.startswith(f"{method}.")}
    return replace(model, encoding=method, encoding_options=options)


def _changes(section: str, old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    if not isinstance(new, dict):
        return [] if old == new else [(section, old, new)]
    old = old or {}
    names = dict.fromkeys([*old, *new])
    return [(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]
