"""The base of executors on other machines: resources of a run, and transfer of its files. No torch here.

On most clusters all machines share a folder. A run then works in its own folder, and its progress can be shown. On a
machine that does not share it, a run works in the cache folder, and its result files are sent back. The prepared text
must be at the same path on every machine in both cases.
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
from dape.results.numbers import count
from dape.training.run import METRICS

SENT_BACK = (ROWS, METRICS, "log.txt")
"""The files that are sent back from a machine that does not share the folder."""


@dataclass(frozen=True, kw_only=True)
class ClusterExecutor:
    """The resources of a run on other machines."""

    at_a_time: int | None = None
    """Most runs at a time; None: as many as resources allow."""
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
    def description(self) -> str:
        """For the line that is printed before the runs begin."""
        share = count(self.cpus, "core") + (f" and {count(self.gpus, 'GPU')}" if self.gpus else "")
        limit = f", at most {self.at_a_time} at a time" if self.at_a_time else ""
        return f"through {type(self).__name__} with {share} each{limit}"


def find_library(extra: str) -> str:
    """The name of an extra's library in Python. Raises UsageError if it is not installed; imports nothing."""
    [(library, module)] = EXTRAS[extra].needs.items()
    if importlib.util.find_spec(module) is None:
        raise UsageError(f"`executor` {extra} needs the {library} library: {install_command(extra)}")
    return module


def require(extra: str) -> Any:
    """The library of an extra. Raises UsageError if it is not installed."""
    return importlib.import_module(find_library(extra))


@dataclass(frozen=True)
class RemoteRun:
    """A run that is sent to another machine."""

    folder: str
    job: str
    """The text of its job.json. A machine shares the folder if it finds the same text there."""
    worker: str

    @staticmethod
    def of(task: Task) -> "RemoteRun":
        folder = task.folder.resolve()
        return RemoteRun(str(folder), (folder / JOB).read_text(encoding="utf-8"), executor.WORKER)

    def work_folder(self) -> tuple[Path, bool]:
        """The folder to work in on this machine, and whether it is the shared one."""
        shared = Path(self.folder)
        try:
            if (shared / JOB).read_text(encoding="utf-8") == self.job:
                return shared, True
        except OSError:
            pass
        # The name depends on the run only, so that a second attempt on this machine continues the first one.
        own = cache_folder() / "runs" / sha256_of(self.folder + self.job)[:16] / shared.name
        own.mkdir(parents=True, exist_ok=True)
        write_text(own / JOB, self.job)
        return own, False

    def start(self, folder: Path) -> "subprocess.Popen[bytes]":
        task = Task(folder.name, folder)
        append_log(task, f"attempt on {socket.gethostname()} by process {os.getpid()}")
        _wait_until_free(folder)
        return executor.start(task, self.worker)

    def results(self, folder: Path, shared: bool) -> dict[str, bytes]:
        """The files to send back."""
        return {} if shared else {n: (folder / n).read_bytes() for n in SENT_BACK if (folder / n).is_file()}


def deliver(task: Task, files: dict[str, bytes]) -> None:
    """Write the files that were sent back; the rows last, because they mark a run as finished."""
    for name in sorted(set(SENT_BACK) & set(files), key=lambda name: name == ROWS):
        write_text(task.folder / name, files[name].decode(errors="replace"))


def stop(child: "subprocess.Popen[bytes] | None") -> None:
    """Let the worker save and stop, if it was started."""
    if child is not None:
        executor.stop([child])


def exit_code(child: "subprocess.Popen[bytes]") -> int:
    """Wait for the worker, in short steps: signals can interrupt Python between them."""
    while child.poll() is None:
        time.sleep(executor.POLL_SECONDS)
    return child.returncode


def has_begun(task: Task, since: float) -> bool:
    """Whether the worker has written to its log since then, as far as this machine can see."""
    try:
        return task.log.stat().st_mtime >= since
    except OSError:
        return False


def append_log(task: Task, text: str) -> None:
    """Add a line to the log, which :func:`~dape.experiments.executor.last_words` shows."""
    task.folder.mkdir(parents=True, exist_ok=True)
    with task.log.open("a", encoding="utf-8") as log:
        log.write(text.rstrip() + os.linesep)


def _wait_until_free(folder: Path) -> None:
    """Wait for the worker of a lost attempt, which notices that its parent is gone, saves and ends."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(folder / ".lock", timeout=executor.PATIENCE_SECONDS):
            pass
    except (Timeout, OSError):  # the new worker fails for the same reason, and logs it
        return
