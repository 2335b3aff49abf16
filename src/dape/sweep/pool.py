"""A pool of child processes. One that dies takes nothing with it but its own work. No torch here."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_SECONDS = 0.2
PATIENCE_SECONDS = 60
"""How long children may take to save when they are asked to stop."""


@dataclass(frozen=True)
class Task:
    name: str
    arguments: tuple[str, ...]
    """What follows ``python -m`` in the child."""
    log: Path
    """What the child prints."""


def run_tasks(
    tasks: Sequence[Task], jobs: int, *, tick: Callable[[Sequence[Task]], None]
) -> Iterator[tuple[Task, int]]:
    """Run all tasks, ``jobs`` at a time, and yield each with its exit code when it ends. ``tick(running)`` is called
    several times a second. When this is interrupted, the children are asked to save and stop, and waited for."""
    waiting, running = list(tasks), dict[Task, subprocess.Popen[bytes]]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                task = waiting.pop(0)
                running[task] = _start(task)
            time.sleep(POLL_SECONDS)
            for task in [task for task, child in running.items() if child.poll() is not None]:
                yield task, running.pop(task).returncode
            tick(list(running))
    finally:
        _stop(list(running.values()))


def _start(task: Task) -> subprocess.Popen[bytes]:
    task.log.parent.mkdir(parents=True, exist_ok=True)
    # The child finds modules where the parent does, also when dape is run from a source tree.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with task.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", *task.arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            # A group of its own: Ctrl-C reaches the parent alone, which then asks each child once.
            start_new_session=True,
        )


def _stop(children: Sequence[subprocess.Popen[bytes]]) -> None:
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
    """The end of what a child has said."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "it said nothing"
    return " / ".join(line.strip() for line in text.strip().splitlines()[-lines:] if line.strip()) or "it said nothing"
