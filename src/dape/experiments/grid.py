"""What all plans of many runs share: folders, what is finished, how far a run is, collecting rows. No torch here.

OUT/SETTINGS.yaml     the settings all runs share
    runs/NAME/        a run: metrics.jsonl, checkpoints, rows.jsonl (written last), log.txt
    results.jsonl     the rows of all finished runs, appended to and never rewritten

A run goes by its name, and the same name in the same folder is the same work: what is finished is not done again, what
was broken off goes on, and a folder with other settings is refused.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, NotRequired, Protocol, TypedDict, TypeVar

import yaml

from dape.config.load import read_yaml
from dape.errors import UsageError
from dape.experiments.executor import Task
from dape.experiments.job import JOB, PROGRESS, ROWS, Job, plain_job, write_job
from dape.files import write_text
from dape.reading import Count, as_record, read_record
from dape.results.records import Row, append_rows, read_rows
from dape.training.run import FREE_TO_CHANGE, read_metrics

RESULTS, RUNS = "results.jsonl", "runs"
SHOWN = 4
"""Longer lists are not told in full."""
NOT_IN_NUMBERS = {"threads", "device", "data", "base", "variant", "extra", *FREE_TO_CHANGE}
"""Of a job: where it runs and where things lie (data is compared by its hash), and what its rows are called."""
BACKWARD = 3.0
"""A token of training costs about as much as so many of testing."""


class Named(Protocol):
    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=Named)


@dataclass(frozen=True)
class Effort:
    """How much work a run is, in tokens that are read once."""

    steps: int
    step: float
    """Of one training step, without the backward pass."""
    tests: Mapping[int, float]
    """By length."""


@dataclass(frozen=True, kw_only=True)
class Experiment(ABC, Generic[R]):
    out: Path
    device: str = "cpu"
    threads: int = 1

    what: ClassVar[str]
    """As messages call it: comparison."""
    settings_name: ClassVar[str]
    """The file of settings, by which the folder is recognised."""
    inputs: ClassVar[tuple[str, ...]] = ()
    """What may lie in the folder before it is begun."""

    # What each plan says of itself -----------------------------------------------------------------------------------

    @abstractmethod
    def runs(self) -> list[R]:
        """In the order in which they are begun."""

    @abstractmethod
    def job(self, run: R, threads: int) -> Job:
        """What the worker is to do."""

    def shared_settings(self) -> dict[str, Any]:
        """What must not change within a folder, by section or by name. The settings of each job are compared anyway."""
        return {}

    def effort(self, run: R) -> Effort:
        """How the time that is left is told. Without it, runs count as equal and as done when they are finished."""
        return Effort(0, 0.0, {})

    def growing_settings(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """What may be added to, united with what is known already."""
        return {}

    def found(self, rows: list[Row]) -> str:
        """What a run has found, in a few words."""
        return f"{rows[0].metric} " + " ".join(f"{row.length}: {row.value:.4g}" for row in rows)

    # What it says before it begins -----------------------------------------------------------------------------------

    def axes(self) -> Mapping[str, int]:
        """What is varied, and how many of each there are: their product is the number of runs."""
        return {}

    def introduction(self) -> list[str]:
        """Lines that come first."""
        return []

    def conditions(self) -> list[str]:
        """How runs are trained and tested, a line each."""
        return []

    # Runs ------------------------------------------------------------------------------------------------------------

    def folder(self, run: R) -> Path:
        return self.out / RUNS / run.name

    def finished(self, run: R) -> bool:
        return (self.folder(run) / ROWS).is_file()

    def task(self, run: R) -> Task:
        """Write down what the run is to do, for the child to read."""
        folder = self.folder(run)
        # A run that has begun goes on with as many threads as before: another number may change the last bits.
        threads = plain_job(folder)["threads"] if (folder / JOB).is_file() else self.threads
        write_job(folder, self.job(run, threads))
        return Task(run.name, folder)

    def steps(self, run: R) -> int:
        return self.effort(run).steps

    def share_done(self, run: R) -> float:
        """Roughly how much of a run's work is done."""
        if self.finished(run):
            return 1.0
        effort, now = self.effort(run), self.testing(run)
        tested = sum(cost for length, cost in effort.tests.items() if length < now.get("length", 0))
        if "total" in now:
            tested += effort.tests.get(now["length"], 0.0) * now.get("done", 0) / now["total"]
        done = BACKWARD * effort.step * self.last_metrics(run).get("step", 0) + tested
        whole = BACKWARD * effort.step * effort.steps + sum(effort.tests.values())
        return min(done / whole, 0.999) if whole else 0.0

    def last_metrics(self, run: R) -> dict[str, Any]:
        """Step, loss and whatever else was logged last."""
        lines = [line for line in read_metrics(self.folder(run)) if "loss" in line]
        return lines[-1] if lines else {}

    def testing(self, run: R) -> Mapping[str, Any]:
        """The length at which a run is tested just now, and perhaps how much of it is done; empty before."""
        try:
            return read_record(self.folder(run) / PROGRESS, _Testing)
        except (OSError, ValueError):
            return {}

    # Results ---------------------------------------------------------------------------------------------------------

    @property
    def results(self) -> Path:
        return self.out / RESULTS

    def collect(self) -> list[Row]:
        """All rows of these runs; those that finished runs have not delivered yet are appended first."""
        rows = read_rows(self.results, unfinished=True) if self.results.exists() else []
        delivered = {row.run for row in rows}
        for run in self.runs():
            if self.finished(run) and run.name not in delivered:
                new = read_rows(self.folder(run) / ROWS)
                append_rows(self.results, new)
                rows += new
        wanted = {run.name for run in self.runs()}
        return [row for row in rows if row.run in wanted]

    # Settings --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Create the folder, or make sure that what is there may be added to."""
        known = saved_settings(self.out, self.settings_name)
        if known:
            self._refuse(self.changes(known))
            self.check_jobs()
        elif self.out.exists() and any(p.name not in (".lock", *self.inputs) for p in self.out.iterdir()):
            raise UsageError(f"`out` {self.out}: the folder is not empty and holds no {self.what}; choose another")
        self.out.mkdir(parents=True, exist_ok=True)
        settings = {**self.growing_settings(known), "shared": _plain(self.shared_settings())}
        write_text(self.out / self.settings_name, yaml.safe_dump(settings, sort_keys=False))

    def changes(self, known: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
        """Name, old and new value of every setting in which this differs from what the folder holds."""
        now, then = _plain(self.shared_settings()), known.get("shared", {})
        return [
            change for name in dict.fromkeys([*then, *now]) for change in changes(name, then.get(name), now.get(name))
        ]

    def check_jobs(self) -> None:
        """Refuse to go on with runs that were begun, or finished, with other settings than they would get now: their
        folders know, whatever was done to the file of settings since."""
        for run in self.runs():
            if (self.folder(run) / JOB).is_file():
                then, now = dict(_flat(plain_job(self.folder(run)))), dict(_flat(asdict(self.job(run, self.threads))))
                known = [name for name in now if name in then]  # older versions noted less
                then, now = (_plain({name: of[name] for name in known}) for of in (then, now))
                self._refuse([(f"{run.name}: {n}", then[n], now[n]) for n in known if then[n] != now[n]])

    def _refuse(self, changed: Sequence[tuple[str, Any, Any]]) -> None:
        if changed:
            raise UsageError(
                f"`out` {self.out} holds a {self.what} with other settings: "
                f"{'; '.join(f'{name} was {_short(old)}, now {_short(new)}' for name, old, new in changed)}. "
                "Results would not be comparable; use another `out`."
            )


class _Testing(TypedDict):
    """progress.json."""

    length: Count
    done: NotRequired[Count]
    total: NotRequired[Annotated[int, range(1, 1 << 63)]]


def _flat(job: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """What decides a run's numbers, by section.name."""
    for name, value in job.items():
        if name in NOT_IN_NUMBERS:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


class _Settings(TypedDict, total=False):
    """What files of settings may say; plans have more of their own."""

    shared: dict[str, Any]
    methods: list[str]
    tasks: list[str]
    treatments: list[str]
    rates: list[float]
    lengths: list[Count]
    seeds: Count
    encoding_options: dict[str, Any]
    logging: dict[str, int | float]
    experiment: str
    scale: str
    data: str
    data_name: str


def saved_settings(out: Path, name: str) -> dict[str, Any]:
    path = out / name
    if not path.exists():
        return {}
    given = read_yaml(path)
    try:
        known = {name: value for name, value in given.items() if name in _Settings.__annotations__}
        return {**given, **as_record(_Settings, known, path)}
    except ValueError as error:
        raise UsageError(f"{error}. Put back what was changed, or use another `out`") from error


def changes(name: str, old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    """Within sections by their entries."""
    if not isinstance(new, Mapping) or not isinstance(old, Mapping | None):
        return [] if old == new else [(name, old, new)]
    old = old or {}
    return [(key, old.get(key), new.get(key)) for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]


def united(known: Mapping[str, Any], name: str, now: Sequence[Any]) -> list[Any]:
    """What the folder has, and what comes new."""
    return list(dict.fromkeys([*known.get(name, []), *now]))


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """As it is after being written and read."""
    return json.loads(json.dumps(settings))


def _short(value: Any) -> str:
    return in_short(value) if isinstance(value, list) and len(value) > SHOWN else repr(value)


def in_short(lengths: Sequence[Any]) -> str:
    """41, 42 ... 500: the first two, the last, and how many."""
    if len(lengths) <= SHOWN:
        return ", ".join(map(str, lengths))
    return f"{lengths[0]}, {lengths[1]} ... {lengths[-1]} ({len(lengths)} lengths)"


def relative_data(data: str, out: Path) -> str:
    """Relative to the folder where it lies inside, so that the folder can be moved."""
    folder, out = Path(data), out.resolve()
    return str(folder.relative_to(out)) if folder.is_relative_to(out) else data
