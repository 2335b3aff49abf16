"""What commands with many runs show while these work."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dape.training.interrupt import signals_as_interrupts

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dape.experiments.executor import Task
    from dape.experiments.grid import Experiment
    from dape.results.records import Row

AGAIN = "continue by giving the same command again: what is in {} is not done twice"


class LiveRuns:
    """What the runs of a grid are doing; lines of text where there is no terminal. What the table shows of finished
    ones, and what is said of each, is left to the commands."""

    LINE_SECONDS, TABLE_SECONDS = 20.0, 0.5

    def __init__(self, plan: "Experiment[Any]") -> None:
        from rich.console import Console
        from rich.live import Live

        self._plan: Any = plan
        self._runs = {run.name: run for run in plan.runs()}
        self._rows: list[Row] = plan.collect()
        self._console = Console(stderr=True)
        self._plain = not self._console.is_terminal
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._begin = self._spoken = time.monotonic()
        self._done_before = self._share_done()

    def __enter__(self) -> "LiveRuns":
        if not self._plain:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._plain:
            self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def add(self, rows: "list[Row]", name: str) -> None:
        """A run has finished."""
        self._rows = rows
        if self._plain:
            found = self._found([row for row in rows if row.run == name])
            self.say(f"[{time.monotonic() - self._begin:5.0f} s] {name}  {found}")

    def tick(self, running: "Sequence[Task]") -> None:
        now = time.monotonic()
        if now - self._spoken < (self.LINE_SECONDS if self._plain else self.TABLE_SECONDS):
            return
        self._spoken = now
        doing = [self._doing(task.name) for task in running]
        if self._plain:
            self.say(f"[{now - self._begin:5.0f} s] {'; '.join(doing)}; {self._time_left()}")
        else:
            self._live.update(self._picture(doing), refresh=True)

    def _picture(self, doing: "Sequence[str]") -> Any:
        from rich.console import Group
        from rich.text import Text

        return Group(*self._tables(), *(Text(line, "dim") for line in [*doing, self._time_left()]))

    def _found(self, rows: "list[Row]") -> str:
        """What a run has found, in a few words."""
        raise NotImplementedError

    def _tables(self) -> "Sequence[RenderableType]":
        """What all have found so far."""
        raise NotImplementedError

    def _doing(self, name: str) -> str:
        run = self._runs[name]
        if now := self._plan.testing(run):
            return f"{name} testing length {now['length']}"
        last = self._plan.last_metrics(run)
        if not last:
            return f"{name} starting"
        accuracy = f" accuracy {100 * last['accuracy']:.0f}%" if "accuracy" in last else ""
        return f"{name} step {last['step']}/{self._plan.steps(run)} loss {last['loss']:.3f}{accuracy}"

    def _share_done(self) -> float:
        return sum(self._plan.share_done(run) for run in self._runs.values()) / len(self._runs)

    def _time_left(self) -> str:
        done, spent = self._share_done() - self._done_before, time.monotonic() - self._begin
        if done < 0.01:
            return "time left: unknown yet"
        left = spent * (1 - self._done_before - done) / done
        return f"about {left:.0f} s left" if left < 100 else f"about {left / 60:.0f} min left"


class LivePerplexity(LiveRuns):
    """Language models under one set of conditions."""

    def _found(self, rows: "list[Row]") -> str:
        return "perplexity " + " ".join(f"{row.length}: {row.value:.4g}" for row in rows)

    def _tables(self) -> "Sequence[RenderableType]":
        from dape.report.tables import terminal_table

        table = terminal_table(
            self._rows,
            methods=self._plan.methods,
            lengths=self._plan.evaluation.lengths,
            seeds=range(self._plan.seeds),
            train_length=self._plan.model.train_length,
            width=self._console.width,
        )
        return [table]


def side_by_side(plan: "Experiment[Any]") -> int:
    """How many runs at a time, if nobody says."""
    from dape.machine import usable_cores

    return min(usable_cores(), len(plan.runs())) if plan.device == "cpu" else 1


def threads_each(jobs: int) -> int:
    from dape.machine import usable_cores

    return max(1, usable_cores() // jobs)


def run_shown(
    plan: "Experiment[Any]", live: Callable[["Experiment[Any]"], LiveRuns], *, jobs: int, threads: int, hint: str = ""
) -> dict[str, str]:
    """Run what is not finished; the last words of those that failed, by name. ``hint``: how to go on after Ctrl-C."""
    todo = [run for run in plan.runs() if not plan.finished(run)]
    if not todo:
        return {}
    plan = replace(plan, threads=threads)
    with signals_as_interrupts(), live(plan) as shown:
        try:
            return _run(plan, todo, jobs, shown)
        except KeyboardInterrupt:
            shown.say("interrupted; every run has been asked to save what it has")
            shown.say(hint or AGAIN.format(plan.out))
            raise


def _run(plan: "Experiment[Any]", todo: Sequence[Any], jobs: int, shown: LiveRuns) -> dict[str, str]:
    """One failing run does not stop the rest."""
    from dape.experiments.executor import Local, last_words

    failures: dict[str, str] = {}
    for task, code in Local(jobs).run([plan.task(run) for run in todo], tick=shown.tick):
        if code == 0:
            shown.add(plan.collect(), task.name)
        else:
            failures[task.name] = f"exit code {code}: {last_words(task.log)}"
            shown.say(f"{task.name} failed ({failures[task.name]})")
    return failures


def tell_failures(failures: Mapping[str, str]) -> None:
    for name, words in failures.items():
        print(f"dape: {name} failed, {words}", file=sys.stderr)
