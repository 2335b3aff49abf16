"""The runner of all benchmarks: rounds, progress, interruption, files and tables.

A benchmark declares a :class:`Plan` with parts: calls that are timed (:class:`Timed`) and work that is done once
(:class:`Once`). Parts come from an iterator, so that each prepares its inputs only when it is reached. :func:`command`
does the rest.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dape.bench.options import surroundings
from dape.bench.records import Record, Results, print_table

if TYPE_CHECKING:
    from rich.table import Table

INTERRUPTED = 130
Name = TypeVar("Name")


class NotMeasuredError(Exception):
    """A result is wrong, or cannot be measured: the command prints the message and writes no results."""


# Parts ---------------------------------------------------------------------------------------------------------------


def interleaved(
    candidates: Mapping[Name, Callable[[], object]],
    repeats: int,
    *,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[tuple[Name, float]]:
    """Yield (name, seconds) for ``repeats`` timed calls of every candidate.

    Every round calls each candidate once, and starts one candidate later than the round before. Noise, heat and the
    state of caches then affect all candidates equally. ``warm_up`` untimed rounds come first. Results are yielded one
    by one, so that an interruption keeps those before it.
    """
    names = list(candidates)
    for name in names * warm_up:
        candidates[name]()
    for round_ in range(repeats):
        first = round_ % max(len(names), 1)
        for name in names[first:] + names[:first]:
            start = clock()
            candidates[name]()
            yield name, clock() - start


class Watch(Protocol):
    """Is told what begins, and when a step is finished."""

    def begin(self, what: str) -> None: ...

    def step(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Calls that are timed in turns."""

    what: str = ""
    """Shown when it begins, unless it is empty."""
    calls: Mapping[Any, Callable[[], object]]
    repeats: int
    warm_up: int = 1
    clock: Callable[[], float] = time.perf_counter
    deadline: float = float("inf")
    """No round begins after this value of :func:`time.monotonic`, but one is always timed."""
    records: Callable[[Mapping[Any, Sequence[float]]], list[Record]]
    """Makes records from the seconds of every call; the n-th of each are from round n. After an interruption some are
    missing."""

    def carry_out(self, watch: Watch, records: list[Record]) -> None:
        samples: dict[Any, list[float]] = {name: [] for name in self.calls}
        try:
            timed = interleaved(self.calls, self.repeats, warm_up=self.warm_up, clock=self.clock)
            for number, (name, seconds) in enumerate(timed, 1):
                samples[name].append(seconds)
                watch.step()
                if number % len(self.calls) == 0 and time.monotonic() > self.deadline:
                    break
        finally:  # an interruption keeps the finished repetitions
            records += self.records(samples)


@dataclass(frozen=True, kw_only=True)
class Once:
    """One step of work, which returns new records or completes earlier ones."""

    what: str = ""
    do: Callable[[], list[Record]]

    def carry_out(self, watch: Watch, records: list[Record]) -> None:
        records += self.do()
        watch.step()


@dataclass(frozen=True)
class Begins:
    """No work, only a message: what the benchmark does before its next part."""

    what: str

    def carry_out(self, watch: Watch, records: list[Record]) -> None:
        pass


Part = Timed | Once | Begins


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The work of a benchmark."""

    parts: Iterable[Part]
    steps: int
    """Number of timed calls and other steps, unless time runs out."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that the numbers depend on, besides options, machine and versions."""


# Progress ------------------------------------------------------------------------------------------------------------


class Progress:
    """A progress bar on standard error, or lines of text where that is not a terminal."""

    def __init__(self, steps: int) -> None:
        from rich import progress
        from rich.console import Console

        self._console = Console(stderr=True)
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=steps)
        self._steps, self._done = steps, 0

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, what: str) -> None:
        """Show that this is being done from now on."""
        self._bar.update(self._task, description=what)
        if not self._console.is_terminal:
            self._console.print(f"[{self._done}/{self._steps}] {what}", markup=False, highlight=False)

    def step(self) -> None:
        """Count a finished step."""
        self._done += 1
        self._bar.advance(self._task)


class Telling:
    """Replaces the progress bar: calls ``tell`` with what begins, and ignores steps."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.begin = tell

    def __call__(self, steps: int) -> "Telling":
        return self

    def __enter__(self) -> "Telling":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def step(self) -> None:
        pass


# The whole -----------------------------------------------------------------------------------------------------------


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def measure(config: Any, plan: Callable[[int], Plan], watch: Callable[[int], Any] = Progress) -> Results:
    """Carry out the plan, which is made for the number of threads. Ctrl-C ends it early, with what was finished."""
    with surroundings(config) as settings:
        planned = plan(settings.get("threads", 1))
        records: list[Record] = []
        complete = True
        try:
            with watch(planned.steps) as told:
                for part in planned.parts:
                    if part.what:
                        told.begin(part.what)
                    part.carry_out(told, records)
        except KeyboardInterrupt:
            complete = False
    return Results({**settings, **planned.settings, "complete": complete}, records)


def command(
    config: Any,
    plan: Callable[[int], Plan],
    tables: Callable[[Results], "Iterable[Table]"],
    *,
    also: Callable[[Results], None] = lambda results: None,
    failed: Callable[[Results], bool] = lambda results: False,
    watch: Callable[[int], Any] = Progress,
) -> int:
    """Measure, write the files, call ``also``, show the tables.

    Returns the exit code: 1 if a result is wrong or ``failed`` returns True, 130 if interrupted.
    """
    try:
        results = measure(config, plan, watch)
    except NotMeasuredError as error:
        say(str(error))
        return 1
    # Files come first: writing the tables fails if they go to a pipe that is closed early.
    if config.json is not None:
        results.write(config.json)
        say(f"wrote {config.json}")
    if getattr(config, "append", None) is not None:
        results.append(config.append)
        say(f"appended {len(results.records)} results to {config.append}")
    also(results)
    if not results.complete:
        say("interrupted: only what was finished is reported")
    for table in tables(results):
        print_table(table)
    if not results.complete:
        return INTERRUPTED
    return int(failed(results))
