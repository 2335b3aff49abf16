"""What runs on other machines have in common: their share of a machine, and the way of a run's files. No torch here.

Most clusters have a folder that all machines see; then a run works in its own folder, and progress shows while it does.
A machine that does not see it works in a folder of its own cache and gives back the files that tell what came out. Text
must lie at the same path on every machine in either case.
"""

import importlib.util
import os
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dape.errors import UsageError
from dape.experiments import executor
from dape.experiments.executor import Task
from dape.experiments.job import JOB, ROWS
from dape.extras import EXTRAS, install_command
from dape.files import cache_folder, sha256_of, write_text
from dape.training.run import METRICS

CARRIED = (ROWS, METRICS, "log.txt")
"""What comes back from a machine that does not see the folder; rows as whatever says that a run is finished."""


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """Of every executor on other machines."""

    at_a_time: int | None = None
    """Runs; by default as many as there is room for."""
    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.cpus < 1e4:
            raise UsageError(f"`cpus_per_run` must be above 0, got {self.cpus:g}")
        if not 0 <= self.gpus < 1e3:
            raise UsageError(f"`gpus_per_run` must be at least 0, got {self.gpus:g}")

    @property
    def threads(self) -> int:
        return max(1, int(self.cpus))

    @property
    def words(self) -> str:
        """For the line that says what is about to be done."""
        share = f"{self.cpus:g} cores" + (f" and {self.gpus:g} GPUs" if self.gpus else "")
        limit = f", at most {self.at_a_time} at a time" if self.at_a_time else ""
        return f"through {type(self).__name__} with {share} each{limit}"


def require(extra: str) -> Any:
    """The library of an extra, or which extra is missing."""
    [(library, module)] = EXTRAS[extra].needs.items()
    if importlib.util.find_spec(module) is None:
        raise UsageError(f"`executor` {extra} needs the {library} library: {install_command(extra)}")
    return importlib.import_module(module)


@dataclass(frozen=True)
class Errand:
    """A run as it goes to another machine."""

    folder: str
    job: str
    """The text of its job.json, which also tells whether a machine sees the folder."""
    worker: str

    @staticmethod
    def of(task: Task) -> "Errand":
        folder = task.folder.resolve()
        return Errand(str(folder), (folder / JOB).read_text(encoding="utf-8"), executor.WORKER)

    def place(self) -> tuple[Path, bool]:
        """Where to work on this machine, and whether whoever sent this sees it."""
        seen = Path(self.folder)
        try:
            if (seen / JOB).read_text(encoding="utf-8") == self.job:
                return seen, True
        except OSError:
            pass
        # By its name and what it is to do: a second attempt on this machine goes on where the first one stopped.
        own = cache_folder() / "runs" / sha256_of(self.folder + self.job)[:16] / seen.name
        own.mkdir(parents=True, exist_ok=True)
        write_text(own / JOB, self.job)
        return own, False

    def start(self, folder: Path) -> "subprocess.Popen[bytes]":
        task = Task(folder.name, folder)
        note(task, f"attempt on {socket.gethostname()} by process {os.getpid()}")
        _wait_until_free(folder)
        return executor.start(task, self.worker)

    def results(self, folder: Path, shared: bool) -> dict[str, bytes]:
        return {} if shared else {n: (folder / n).read_bytes() for n in CARRIED if (folder / n).is_file()}


def deliver(task: Task, files: dict[str, bytes]) -> None:
    """What was carried back, the rows last."""
    for name in sorted(set(CARRIED) & set(files), key=lambda name: name == ROWS):
        write_text(task.folder / name, files[name].decode(errors="replace"))


def stop(child: "subprocess.Popen[bytes] | None") -> None:
    """Let it save."""
    if child is not None:
        executor.stop([child])


def became_of(child: "subprocess.Popen[bytes]") -> int:
    """Waits in short steps, between which Python can be interrupted."""
    while child.poll() is None:
        time.sleep(executor.POLL_SECONDS)
    return child.returncode


def has_begun(task: Task, since: float) -> bool:
    """Whether its worker has said something since, as far as this machine sees."""
    try:
        return task.log.stat().st_mtime >= since
    except OSError:
        return False


def note(task: Task, words: str) -> None:
    """For :func:`~dape.experiments.executor.last_words`."""
    task.folder.mkdir(parents=True, exist_ok=True)
    with task.log.open("a", encoding="utf-8") as log:
        log.write(words.rstrip() + os.linesep)


def _wait_until_free(folder: Path) -> None:
    """The worker of an attempt that was lost notices that it is alone, saves and ends; then the folder is free."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(folder / ".lock", timeout=executor.PATIENCE_SECONDS):
            pass
    except (Timeout, OSError):  # the worker finds the same, and says so in its log
        return
