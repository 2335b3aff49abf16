"""What commands with many runs show while these work."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dape.evaluation.records import Row
    from dape.sweep.compare import Comparison
    from dape.sweep.pool import Task

AGAIN = "continue by giving the same command again: what is in {} is not done twice"


class LiveTable:
    """The table as it grows, and what the runs are doing; lines of text where there is no terminal."""

    LINE_SECONDS, TABLE_SECONDS = 20.0, 0.5

    def __init__(self, comparison: "Comparison") -> None:
        from rich.console import Console
        from rich.live import Live

        self._comparison = comparison
        self._rows: list[Row] = comparison.collect()
        self._console = Console(stderr=True)
        self._plain = not self._console.is_terminal
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._begin = self._spoken = time.monotonic()
        self._done_before = self._share_done()

    def __enter__(self) -> "LiveTable":
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
        values = " ".join(f"{row.length}: {row.value:.4g}" for row in rows if row.run == name)
        if self._plain:
            self.say(f"[{time.monotonic() - self._begin:5.0f} s] {name}  perplexity {values}")

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

    def _picture(self, doing: Sequence[str]) -> Any:
        from rich.console import Group
        from rich.text import Text

        from dape.report.tables import terminal_table

        comparison = self._comparison
        table = terminal_table(
            self._rows,
            methods=comparison.methods,
            lengths=comparison.evaluation.lengths,
            seeds=range(comparison.seeds),
            train_length=comparison.model.train_length,
            width=self._console.width,
        )
        return Group(table, *(Text(line, "dim") for line in [*doing, self._time_left()]))

    def _doing(self, name: str) -> str:
        from dape.training.run import read_metrics

        run = next(run for run in self._comparison.runs() if run.name == name)
        measuring = self._comparison.evaluating(run)
        if measuring is not None:
            return f"{name} measuring length {measuring['length']}"
        lines = [line for line in read_metrics(self._comparison.folder(run)) if "loss" in line]
        if not lines:
            return f"{name} starting"
        return f"{name} step {lines[-1]['step']}/{self._comparison.train.steps} loss {lines[-1]['loss']:.3f}"

    def _share_done(self) -> float:
        runs = self._comparison.runs()
        return sum(self._comparison.share_done(run) for run in runs) / len(runs)

    def _time_left(self) -> str:
        done, spent = self._share_done() - self._done_before, time.monotonic() - self._begin
        if done < 0.01:
            return "time left: unknown yet"
        left = spent * (1 - self._done_before - done) / done
        return f"about {left:.0f} s left" if left < 100 else f"about {left / 60:.0f} min left"


class LiveAccuracy(LiveTable):
    """Runs that log their accuracy; what the table shows of them is left open."""

    def __init__(self, plan: Any) -> None:
        self._plan = plan
        super().__init__(plan)

    def _doing(self, name: str) -> str:
        run = next(run for run in self._plan.runs() if run.name == name)
        if length := self._plan.testing(run):
            return f"{name} testing length {length}"
        last = self._plan.last_metrics(run)
        if not last:
            return f"{name} starting"
        step, accuracy = f"step {last['step']}/{self._plan.config.steps}", f"accuracy {100 * last['accuracy']:.0f}%"
        return f"{name} {step} loss {last['loss']:.3f} {accuracy}"


def run_shown(plan: Any, todo: Sequence[Any], jobs: int, show: Callable[[], LiveTable], *, hint: str) -> dict[str, str]:
    """Run what is to be done; the last words of those that failed, by name. ``hint``: how to go on after Ctrl-C."""
    from dape.sweep.pool import last_words, run_tasks

    if not todo:
        return {}
    failures: dict[str, str] = {}
    with show() as live:
        try:
            tasks = [plan.task(run) for run in todo]
            for task, code in run_tasks(tasks, jobs, tick=live.tick):
                if code == 0:
                    live.add(plan.collect(), task.name)
                else:
                    failures[task.name] = f"exit code {code}: {last_words(task.log)}"
                    live.say(f"{task.name} failed ({failures[task.name]})")
        except KeyboardInterrupt:
            live.say("interrupted; every run has been asked to save what it has")
            live.say(hint)
            raise
    return failures
