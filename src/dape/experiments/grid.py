"""The base of all experiments: folders of runs, progress, collecting rows, checking settings. No torch here.

OUT/SETTINGS.yaml     the settings all runs share
    runs/NAME/        a run: metrics.jsonl, checkpoints, rows.jsonl (written last), log.txt
    results.jsonl     the rows of all finished runs, appended to and never rewritten

A run is identified by its name within the folder. Finished runs are not done again, interrupted runs continue, and a
folder with other settings is refused.
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
from dape.files import check_writable_folder, write_text
from dape.reading import Count, as_record, read_record
from dape.results.records import Row, append_rows, read_rows
from dape.training.run import FREE_TO_CHANGE, read_metrics

RESULTS, RUNS = "results.jsonl", "runs"
SHOWN = 4
"""Longer lists are abbreviated in messages."""
NOT_IN_NUMBERS = {"threads", "device", "data", "base", "variant", "extra", *FREE_TO_CHANGE}
"""Settings of a job that do not change its numbers: machine, paths (data is compared by its hash), labels of rows."""
BACKWARD = 3.0
"""The cost of a token in training, relative to a token in tests."""


class Named(Protocol):
    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=Named)


@dataclass(frozen=True)
class Effort:
    """The work of a run, in tokens of the forward pass."""

    steps: int
    step: float
    """Tokens of one training step."""
    tests: Mapping[int, float]
    """Tokens of the tests, by length."""


@dataclass(frozen=True, kw_only=True)
class Experiment(ABC, Generic[R]):
    out: Path
    device: str = "cpu"
    threads: int = 1

    what: ClassVar[str]
    """The name of the experiment in messages, such as "comparison"."""
    settings_name: ClassVar[str]
    """The file name of the settings, by which the folder is recognised."""
    inputs: ClassVar[tuple[str, ...]] = ()
    """Names of files and folders that may exist in ``out`` before the experiment begins."""

    # Defined by each experiment --------------------------------------------------------------------------------------

    @abstractmethod
    def runs(self) -> list[R]:
        """All runs, in the order in which they are started."""

    @abstractmethod
    def job(self, run: R, threads: int) -> Job:
        """The job of a run."""

    def shared_settings(self) -> dict[str, Any]:
        """Settings that must not change within a folder, by name or section. The settings of jobs are compared too."""
        return {}

    def effort(self, run: R) -> Effort:
        """The work of a run, to estimate the time that is left. By default all runs count equally."""
        return Effort(0, 0.0, {})

    def growing_settings(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Settings that may grow within a folder, united with the ``known`` ones of the folder."""
        return {}

    def found(self, rows: list[Row]) -> str:
        """The result of a run in a few words."""
        return f"{rows[0].metric} " + " ".join(f"{row.length}: {row.value:.4g}" for row in rows)

    # Printed before the runs begin -----------------------------------------------------------------------------------

    def axes(self) -> Mapping[str, int]:
        """The variables of the grid and their numbers of values. The product is the number of runs."""
        return {}

    def introduction(self) -> list[str]:
        """The first lines."""
        return []

    def conditions(self) -> list[str]:
        """Lines on how runs are trained and tested."""
        return []

    # Runs ------------------------------------------------------------------------------------------------------------

    def folder(self, run: R) -> Path:
        return self.out / RUNS / run.name

    def finished(self, run: R) -> bool:
        return (self.folder(run) / ROWS).is_file()

    def task(self, run: R) -> Task:
        """Write the job of the run for its worker."""
        folder = self.folder(run)
        # A run that has begun keeps its number of threads: another one may change the last bits.
        begun = (folder / JOB).is_file() and self.last_metrics(run)
        threads = plain_job(folder)["threads"] if begun else self.threads
        write_job(folder, self.job(run, threads))
        return Task(run.name, folder)

    def share_done(self, run: R) -> float:
        """The estimated fraction of a run's work that is done."""
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
        """The last line of metrics.jsonl that has a loss."""
        lines = [line for line in read_metrics(self.folder(run)) if "loss" in line]
        return lines[-1] if lines else {}

    def testing(self, run: R) -> Mapping[str, Any]:
        """The length that is being tested, and how much of it is done if that is known; empty before the tests."""
        try:
            return read_record(self.folder(run) / PROGRESS, _Testing)
        except (OSError, ValueError):
            return {}

    # Results ---------------------------------------------------------------------------------------------------------

    @property
    def results(self) -> Path:
        return self.out / RESULTS

    def collect(self) -> list[Row]:
        """All rows of these runs. Rows of newly finished runs are first appended to results.jsonl."""
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

    @classmethod
    def check_folder(cls, out: Path) -> dict[str, Any]:
        """The settings in the folder, empty for a new one. Raises UsageError if it holds something else.

        This needs no plan: a wrong folder is refused before text is prepared in it, and before torch is imported.
        """
        check_writable_folder(out, "`out`")
        known = saved_settings(out, cls.settings_name)
        # Hidden files are ours: the lock, and text whose preparation was interrupted.
        if not known and out.exists() and any(p.name not in cls.inputs and p.name[0] != "." for p in out.iterdir()):
            raise UsageError(f"`out` {out}: the folder is not empty and holds no {cls.what}; choose another")
        return known

    def begin(self) -> None:
        """Create the folder, or check that it may be continued. Raises UsageError if not."""
        known = self.check_folder(self.out)
        if known:
            self._refuse(self.changes(known))
            self.check_jobs()
        self.out.mkdir(parents=True, exist_ok=True)
        settings = {**self.growing_settings(known), "shared": _plain(self.shared_settings())}
        write_text(self.out / self.settings_name, yaml.safe_dump(settings, sort_keys=False))

    def changes(self, known: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
        """Name, old and new value of every shared setting that differs from the folder's."""
        now, then = _plain(self.shared_settings()), known.get("shared", {})
        return [
            change for name in dict.fromkeys([*then, *now]) for change in changes(name, then.get(name), now.get(name))
        ]

    def check_jobs(self) -> None:
        """Raise UsageError for runs whose job.json has other settings than they would get now.

        This holds even if the file of settings was edited or removed.
        """
        for run in self.runs():
            if (self.folder(run) / JOB).is_file():
                then, now = dict(_flat(plain_job(self.folder(run)))), dict(_flat(asdict(self.job(run, self.threads))))
                known = [name for name in now if name in then]  # older versions wrote fewer settings
                then, now = (_plain({name: settings[name] for name in known}) for settings in (then, now))
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
    """The settings that decide a run's numbers, as section.name."""
    for name, value in job.items():
        if name in NOT_IN_NUMBERS:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


class _Settings(TypedDict, total=False):
    """Entries of settings files whose types are checked. Experiments may have more."""

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
    """A change of one setting, or the changed entries of a section."""
    if not isinstance(new, Mapping) or not isinstance(old, Mapping | None):
        return [] if old == new else [(name, old, new)]
    old = old or {}
    return [(key, old.get(key), new.get(key)) for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]


def united(known: Mapping[str, Any], name: str, now: Sequence[Any]) -> list[Any]:
    """The values that the folder has, and the new ones."""
    return list(dict.fromkeys([*known.get(name, []), *now]))


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as they are after writing and reading."""
    return json.loads(json.dumps(settings))


def _short(value: Any) -> str:
    return in_short(value) if isinstance(value, list) and len(value) > SHOWN else repr(value)


def in_short(lengths: Sequence[Any]) -> str:
    """Lengths, abbreviated such as "41, 42 ... 500 (460 lengths)"."""
    if len(lengths) <= SHOWN:
        return ", ".join(map(str, lengths))
    return f"{lengths[0]}, {lengths[1]} ... {lengths[-1]} ({len(lengths)} lengths)"


def relative_data(data: str, out: Path) -> str:
    """The path of the data, relative to ``out`` if it is inside, so that the folder can be moved."""
    folder, out = Path(data), out.resolve()
    return str(folder.relative_to(out)) if folder.is_relative_to(out) else data
