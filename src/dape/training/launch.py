"""Start the processes of a run on this machine, and start them again when one was killed. No torch here."""

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
"""Environment variable: the file by which the processes of one machine find each other; no port that could be taken."""
LAUNCHER = "DAPE_LAUNCHER"
"""Environment variable: the process that starts them. It may have died before they can ask for their parent."""
LOST = 75
"""Exit code of a process that has lost another one, not its own fault: EX_TEMPFAIL."""
PATIENCE = "DAPE_PATIENCE"
"""Environment variable: the seconds that a process waits for another one, to join and to answer; 600 by default."""
MOST = 64
GRACE = 600.0
"""Seconds to finish a step and save, once asked to stop."""


def check_processes(count: int) -> None:
    if not 1 <= count <= MOST:
        raise UsageError(f"`processes` must lie between 1 and {MOST} on one machine, got {count}; torchrun starts more")


def check_shares(batch: int, accumulate: int, world: int) -> None:
    part = batch // accumulate
    if part % world:
        parts = f" in `accumulate` {accumulate} parts of {part}" if accumulate > 1 else ""
        raise UsageError(f"`batch` {batch}{parts} cannot be divided among {world} processes; choose a multiple")


class ProcessesFailedError(RuntimeError):
    """The processes have said why."""

    def __init__(self, code: int, count: int, what: str) -> None:
        super().__init__(f"{what} in {count} processes failed with exit code {code}")
        self.code = code


def in_group() -> bool:
    """Whether torchrun, or :func:`run_processes`, has started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def patience() -> float:
    text = os.environ.get(PATIENCE, "600")
    with contextlib.suppress(ValueError):
        if 1 <= (seconds := float(text)) <= 1e6:
            return seconds
    raise UsageError(f"${PATIENCE} must be a number of seconds from 1 to 1000000, got {text!r}")


def restart() -> int:
    """How often whoever started this process, which torchrun tells in the same way, has started it again."""
    text = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return int(text) if text.isdecimal() else 0


def launcher() -> int:
    """The process that has started this one as one of several."""
    return int(os.environ.get(LAUNCHER, os.getppid()))


def speaks() -> bool:
    return os.environ.get("RANK", "0") == "0"


def run_processes(words: Sequence[str], count: int, *, restarts: int) -> int:
    """Run ``python words...`` in ``count`` processes. When one was killed, all are started again, ``restarts`` times at
    most: they go on from their last checkpoint. The exit code is that of what failed, or 0."""
    with scratch("dape-processes") as folder, Interruption("") as stop:
        for attempt in range(restarts + 1):
            store = folder / f"store-{attempt}"
            codes = _watch(_start(words, count, store, attempt), stop)
            code = next((c for c in codes if c not in (0, LOST) and c > 0), 0)
            killed = [rank for rank, c in enumerate(codes) if c < 0]
            lost = any(c == LOST for c in codes)
            if stop() or code or not (killed or lost):
                return stop.exit_code or code
            whom = f"process {killed[0]} of {count} was killed" if killed else "processes lost each other"
            again = "starting again from the last checkpoint" if attempt < restarts else "giving up"
            print(f"dape: {whom}; {again} ({attempt + 1} of {restarts + 1})", file=sys.stderr, flush=True)
        return 1


def _start(words: Sequence[str], count: int, store: Path, attempt: int) -> list[subprocess.Popen[bytes]]:
    # A session of their own: Ctrl-C in the terminal reaches this process only, which passes it on once.
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
    """Until all have ended; after one has failed, the others get a moment to say so, and are ended."""
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
