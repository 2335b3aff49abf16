"""Do the runs of an experiment and show their progress: in a terminal, in a notebook, or as lines of text."""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dape.actions.progress import TimeLeft, progress_console
from dape.errors import check_counts
from dape.experiments.executor import Executor, Local, Task, last_words
from dape.experiments.executors import ClusterExecutor
from dape.experiments.grid import Experiment
from dape.fitting import to_terminal
from dape.machine import usable_cores
from dape.results.numbers import count
from dape.tasks.small_models import SmallModels
from dape.training.checks import check_methods, check_model, check_reach
from dape.training.interrupt import signals_as_interrupts
from dape.verbosity import is_quiet, is_verbose

if TYPE_CHECKING:
    from dape.actions.found import Tables
    from dape.results.records import Row


def begin_and_run(
    plan: Experiment[Any],
    *,
    jobs: int | None,
    threads: int | None = None,
    executor: Executor | None = None,
    tables: "Tables | None" = None,
) -> dict[str, str]:
    """Write the plan into its folder, print what will be done, and do it with :func:`run_all`.

    Arguments and result are those of :func:`run_all`. The caller must hold the lock of the folder.
    """
    plan.begin()
    jobs = jobs or side_by_side(plan)
    announce(plan, jobs, executor=executor)
    return run_all(plan, jobs=jobs, threads=threads, executor=executor, tables=tables)


def check_small_models(
    config: SmallModels,
    methods: Sequence[str],
    vocabulary: int,
    lengths: Sequence[int],
    **counts: int | None,
) -> None:
    """Check the settings of models that learn generated tasks, so that errors show before anything is trained."""
    check_methods(methods)
    check_counts(**counts)
    for method in methods:
        model = config.model(method, vocabulary)
        check_model(model)
        check_reach(model, max(lengths))


def run_all(
    plan: Experiment[Any],
    *,
    jobs: int | None = None,
    threads: int | None = None,
    executor: Executor | None = None,
    tables: "Tables | None" = None,
) -> dict[str, str]:
    """Do all runs that are not finished.

    Args:
        plan: the experiment; its folder must exist.
        jobs: runs at the same time; by default one per core, or one on a GPU.
        threads: torch threads of each run; by default the cores divided by ``jobs``.
        executor: where runs are done; by default in processes on this machine.
        tables: turns the rows so far into what a terminal or notebook shows.

    Returns:
        The exit code and the last line of the log of each failed run, by name. A failing run does not stop the others.
    """
    todo = [run for run in plan.runs() if not plan.finished(run)]
    if not todo:
        return {}
    jobs = jobs or side_by_side(plan)
    if isinstance(executor, ClusterExecutor):
        device = "cuda" if executor.gpus else plan.device
        plan = replace(plan, threads=threads or executor.threads, device=device)
    else:
        plan = replace(plan, threads=threads or threads_each(jobs))
    failures: dict[str, str] = {}
    if plan.device == "cpu" and not isinstance(executor, ClusterExecutor):
        _compile_kernel()
    with signals_as_interrupts(), LiveRuns(plan, tables) as shown:
        try:
            for task, code in (executor or Local(jobs)).run([plan.task(run) for run in todo], tick=shown.tick):
                if code == 0:
                    shown.add(plan.collect(), task.name)
                else:
                    failures[task.name] = f"exit code {code}: {last_words(task.log)}"
                    shown.say(f"{task.name} failed ({failures[task.name]})")
        except KeyboardInterrupt:
            shown.say(f"{plan.out} keeps finished work: give the same settings again to continue")
            raise
    return failures


def _compile_kernel() -> None:
    """Compile the C++ kernel now, with a message, so that not every run compiles it at the same time."""
    import torch

    from dape.ops.attention.fused.available import why_not_compiled

    why_not_compiled(torch.empty(0))


def side_by_side(plan: Experiment[Any]) -> int:
    """The default number of runs at the same time."""
    return min(usable_cores(), len(plan.runs())) if plan.device == "cpu" else 1


def threads_each(jobs: int) -> int:
    return max(1, usable_cores() // jobs)


def announce(plan: Experiment[Any], jobs: int, *, executor: Executor | None = None, note: str = "") -> None:
    """Print the number of runs and how they will be done; ``note`` follows the number of finished runs."""
    if is_quiet():
        return
    where = executor.description if isinstance(executor, ClusterExecutor) else f"{jobs} at a time"
    runs = plan.runs()
    done = sum(map(plan.finished, runs))
    finished = f", {done} of them already finished" if done else ""
    axes = " x ".join(count(number, name) for name, number in plan.axes().items())
    grid = f"{axes} = " if axes else ""
    for line in plan.introduction():
        print(line)
    print(to_terminal(f"{grid}{count(len(runs), 'run')}{finished}{note}, {where}, into {plan.out}"))
    for line in plan.conditions():
        print(to_terminal(line))
    sys.stdout.flush()


class LiveRuns:
    """Progress of the runs: tables and a line per run on a terminal, else lines of text."""

    LINE_SECONDS, VERBOSE_SECONDS, TABLE_SECONDS = 20.0, 5.0, 0.5

    def __init__(self, plan: Experiment[Any], tables: "Tables | None" = None) -> None:
        from rich.live import Live

        self._plan, self._tables = plan, tables
        self._runs = {run.name: run for run in plan.runs()}
        self._rows: list[Row] = plan.collect()
        self._console, drawn = progress_console()
        self._plain = not drawn
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._begin = self._spoken = time.monotonic()
        self._left = TimeLeft(self._share_done())

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
        """Show that a run has finished; ``rows`` are all rows so far."""
        self._rows = rows
        if self._plain:
            found = self._plan.found([row for row in rows if row.run == name])
            self.say(f"[{time.monotonic() - self._begin:5.0f} s] {name}  {found}")

    def tick(self, running: Sequence[Task]) -> None:
        now = time.monotonic()
        pause = self.VERBOSE_SECONDS if is_verbose() else self.LINE_SECONDS
        if now - self._spoken < (pause if self._plain else self.TABLE_SECONDS):
            return
        self._spoken = now
        lines = [*(self._progress(task.name) for task in running), self._summary()]
        if self._plain:
            self.say(f"[{now - self._begin:5.0f} s] {'; '.join(lines)}")
        else:
            self._live.update(self._picture(lines), refresh=True)

    def _picture(self, lines: Sequence[str]) -> Any:
        from rich.console import Group
        from rich.text import Text

        tables = self._tables(self._rows, self._console.width) if self._tables else []
        return Group(*tables, *(Text(line, "dim") for line in lines))

    def _progress(self, name: str) -> str:
        run = self._runs[name]
        if now := self._plan.testing(run):
            return f"{name} testing length {now['length']}"
        last = self._plan.last_metrics(run)
        if not last:
            return f"{name} starting"
        accuracy = f" accuracy {100 * last['accuracy']:.0f}%" if "accuracy" in last else ""
        return f"{name} step {last['step']}/{self._plan.effort(run).steps} loss {last['loss']:.3f}{accuracy}"

    def _share_done(self) -> float:
        return sum(self._plan.share_done(run) for run in self._runs.values()) / len(self._runs)

    def _summary(self) -> str:
        finished = f"{sum(map(self._plan.finished, self._runs.values()))} of {count(len(self._runs), 'run')} finished"
        return ", ".join(filter(None, (finished, self._left.words(self._share_done()))))
