"""Start the processes of a run on this machine, and restart them when one was killed. No torch here."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from dape.errors import UsageError
from dape.files import scratch
from dape.machine import usable_cores
from dape.training.interrupt import Interruption

Mode = Literal["single", "ddp", "fsdp"]
STORE = "DAPE_STORE"
"""Environment variable: the file through which the processes of one machine connect. A port could be in use."""
LAUNCHER = "DAPE_LAUNCHER"
"""Environment variable: id of the process that started this one. If that process has died, getppid() names another."""
LOST = 75
"""Exit code of a process that ended because it lost the connection to another one: EX_TEMPFAIL."""
PATIENCE = "DAPE_PATIENCE"
"""Environment variable: seconds to wait for another process to join and to answer; 600 by default."""
MOST_PROCESSES = 64
GRACE = 600.0
"""Seconds to finish a step and save, once asked to stop."""


def check_processes(count: int) -> None:
    if not 1 <= count <= MOST_PROCESSES:
        raise UsageError(
            f"`processes` must lie between 1 and {MOST_PROCESSES} on one machine, got {count}; torchrun starts more"
        )


def check_shares(batch: int, accumulate: int, world: int) -> None:
    part = batch // accumulate
    if part % world:
        parts = f" in `accumulate` {accumulate} parts of {part}" if accumulate > 1 else ""
        raise UsageError(f"`batch` {batch}{parts} cannot be divided among {world} processes; choose a multiple")


class ProcessesFailedError(RuntimeError):
    """Some process failed, and has printed the reason itself."""

    def __init__(self, code: int, count: int, what: str) -> None:
        super().__init__(f"{what} in {count} processes failed with exit code {code}")
        self.code = code


def in_group() -> bool:
    """Whether torchrun or :func:`run_processes` has started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def patience() -> float:
    text = os.environ.get(PATIENCE, "600")
    with contextlib.suppress(ValueError):
        if 1 <= (seconds := float(text)) <= 1e6:
            return seconds
    raise UsageError(f"${PATIENCE} must be a number of seconds from 1 to 1000000, got {text!r}")


def restart() -> int:
    """How often this process was restarted. Our launcher sets the same environment variable as torchrun."""
    text = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return int(text) if text.isdecimal() else 0


def launcher() -> int:
    """Id of the process that has started this one as one of several."""
    return int(os.environ.get(LAUNCHER, os.getppid()))


def is_first() -> bool:
    """Whether this is the process that prints and writes files: the first of its group, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def run_processes(words: Sequence[str], count: int, *, restarts: int) -> int:
    """Run ``python words...`` in ``count`` processes, and return the exit code of the one that failed, or 0.

    When one is killed, all are restarted, at most ``restarts`` times; they go on from their last checkpoint.
    """
    with scratch("dape-processes") as folder, Interruption("") as stop:
        for attempt in range(restarts + 1):
            store = folder / f"store-{attempt}"
            codes = _watch(_start(words, count, store, attempt), stop)
            code = next((c for c in codes if c > 0 and c != LOST), 0)
            killed = [rank for rank, c in enumerate(codes) if c < 0]
            if stop() or code or not (killed or LOST in codes):
                return stop.exit_code or code
            whom = f"process {killed[0]} of {count} was killed" if killed else "processes lost each other"
            again = "starting again from the last checkpoint" if attempt < restarts else "giving up"
            print(f"dape: {whom}; {again} ({attempt + 1} of {restarts + 1})", file=sys.stderr, flush=True)
        return 1


def _start(words: Sequence[str], count: int, store: Path, attempt: int) -> list[subprocess.Popen[bytes]]:
    # In sessions of their own, so that Ctrl-C in the terminal reaches this process only, which passes it on once.
    return [
        subprocess.Popen(
            [sys.executable, *words], env=_environment(rank, count, store, attempt), start_new_session=True
        )
        for rank in range(count)
    ]


def _environment(rank: int, count: int, store: Path, attempt: int) -> Mapping[str, str]:
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, usable_cores() // count))
    return {
        **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), STORE: str(store),
        LAUNCHER: str(os.getpid()), "TORCHELASTIC_RESTART_COUNT": str(attempt), "OMP_NUM_THREADS": threads,
    }  # fmt: skip


def _watch(children: list[subprocess.Popen[bytes]], stop: Interruption) -> list[int]:
    """Wait until all have ended, and return their exit codes. After one has failed, the others get five seconds to
    report errors of their own; then they are killed, and count as LOST."""
    passed_on, deadline = False, float("inf")
    try:
        while any(child.poll() is None for child in children):
            if stop() and not passed_on:
                passed_on, deadline = True, time.monotonic() + GRACE
                for child in children:
                    child.send_signal(stop.signal or signal.SIGTERM)
            if any(child.returncode not in (None, 0) for child in children):
                deadline = min(deadline, time.monotonic() + 5)
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
    finally:
        ended = [child.poll() for child in children]
        for child in children:
            if child.poll() is None:
                child.kill()
            child.wait()
    return [LOST if code is None else code for code in ended]
