"""Executors start a worker for each run. They know nothing about a run but its name and folder. No torch here."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dape.results.numbers import count
from dape.verbosity import tell

WORKER = "dape.experiments.worker"
POLL_SECONDS = 0.2
PATIENCE_SECONDS = 60
"""Time for workers to save when they are asked to stop. Then they are killed."""
START_SECONDS = 4.0
"""Time until a worker has loaded torch and built its model, in estimates."""
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 28), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""Make glibc reuse the memory of large tensors. By default it returns them to the system, and the page faults of the
next ones take a fifth of a training step."""


@dataclass(frozen=True)
class Task:
    """A run, as executors see it."""

    name: str
    folder: Path

    @property
    def log(self) -> Path:
        """The file for the worker's output."""
        return self.folder / "log.txt"


class Executor(Protocol):
    def run(self, tasks: Sequence[Task], *, tick: Callable[[Sequence[Task]], None]) -> Iterator[tuple[Task, int]]:
        """Do all tasks, and yield each with its exit code when it ends.

        ``tick(running)`` is called several times a second. An interruption asks the workers to save and stop, and waits
        for them.
        """
        ...


@dataclass(frozen=True)
class Local:
    """Runs tasks as child processes on this machine."""

    jobs: int
    """Processes at a time."""

    def run(self, tasks: Sequence[Task], *, tick: Callable[[Sequence[Task]], None]) -> Iterator[tuple[Task, int]]:
        waiting, running = list(tasks), dict[Task, subprocess.Popen[bytes]]()
        try:
            while waiting or running:
                while waiting and len(running) < self.jobs:
                    task = waiting.pop(0)
                    running[task] = start(task)
                time.sleep(POLL_SECONDS)
                for task in [task for task, child in running.items() if child.poll() is not None]:
                    yield task, running.pop(task).returncode
                tick(list(running))
        except KeyboardInterrupt:
            if running:  # said now, since to wait for them may take a minute
                tell(f"stopping: {count(len(running), 'run')} will save first")
            raise
        finally:
            stop(list(running.values()))


def start(task: Task, worker: str | None = None) -> subprocess.Popen[bytes]:
    task.folder.mkdir(parents=True, exist_ok=True)
    # The child finds modules where the parent does, also when dape is run from a source tree.
    environment = {**KEEP_MEMORY, **os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with task.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", worker or WORKER, str(task.folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            # In a new session, Ctrl-C reaches only the parent, which then sends each child one signal.
            start_new_session=True,
        )


def stop(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask the workers to save and stop, and wait for them."""
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE_SECONDS
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def last_words(log: Path, lines: int = 3) -> str:
    """The last lines of a worker's log."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "it said nothing"
    return " / ".join(line.strip() for line in text.strip().splitlines()[-lines:] if line.strip()) or "it said nothing"
