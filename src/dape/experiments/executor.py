"""Where runs are done. An executor knows a run's folder and how to start a worker on it, and nothing else. No torch."""

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

WORKER = "dape.experiments.worker"
POLL_SECONDS = 0.2
PATIENCE_SECONDS = 60
"""How long workers may take to save when they are asked to stop."""


@dataclass(frozen=True)
class Task:
    """A run that is to be done."""

    name: str
    folder: Path

    @property
    def log(self) -> Path:
        """What the worker prints."""
        return self.folder / "log.txt"


class Executor(Protocol):
    def run(self, tasks: Sequence[Task], *, tick: Callable[[Sequence[Task]], None]) -> Iterator[tuple[Task, int]]:
        """Do all tasks and yield each with its exit code when it ends. ``tick(running)`` is called several times a
        second. When this is interrupted, workers are asked to save and stop, and waited for."""
        ...


@dataclass(frozen=True)
class Local:
    """Child processes of this machine. One that dies takes nothing with it but its own work."""

    jobs: int
    """At a time."""

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
        finally:
            stop(list(running.values()))


def start(task: Task, worker: str | None = None) -> subprocess.Popen[bytes]:
    task.folder.mkdir(parents=True, exist_ok=True)
    # The child finds modules where the parent does, also when dape is run from a source tree.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with task.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", worker or WORKER, str(task.folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            # A group of its own: Ctrl-C reaches the parent alone, which then asks each child once.
            start_new_session=True,
        )


def stop(children: Sequence[subprocess.Popen[bytes]]) -> None:
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
    """The end of what a worker has said."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "it said nothing"
    return " / ".join(line.strip() for line in text.strip().splitlines()[-lines:] if line.strip()) or "it said nothing"
