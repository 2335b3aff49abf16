"""How a life begins: as ``python -m dape`` (real), or as a copy of this process, which has imported everything already.

Importing torch takes most of the seconds of a tiny command, and kills that hit it find nothing. Copies spare it, also
for the workers that a command starts, and go the same way otherwise.
"""

import contextlib
import importlib
import os
import random
import runpy
import shlex
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dape.experiments.executor import WORKER

OFTEN = Path(__file__).with_name("often")
PRELOADED = shlex.split("""
    dape.cli dape.actions.reproduce dape.data.corpora dape.data.job dape.training.language_model
    dape.training.chomsky dape.training.recall dape.evaluation.chomsky dape.evaluation.recall
    dape.experiments.language dape.experiments.chomsky dape.experiments.recall dape.experiments.adapters.job
    dape.experiments.adapters.tasks dape.experiments.reproduce.judge dape.hf.tune dape.hf.convert dape.report.recall
    dape.report.study dape.report.chomsky dape.report.bias_maps dape.report.reproduction
    torch._dynamo transformers.models.llama.modeling_llama tokenizers scipy.stats rich.progress rich.live
    matplotlib.backends.backend_agg matplotlib.backends.backend_svg
""")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Process = Any
"""With the methods of :class:`subprocess.Popen` that are needed here."""


def start(words: Sequence[str], *, folder: Path, log: Path, real: bool) -> Process:
    """``dape WORDS`` in a session of its own."""
    if not real:
        return Fork(lambda: _dape(words, folder), log)
    paths = [str(OFTEN), *(p for p in sys.path if p)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "dape", *words]
    with log.open("wb") as output:
        return subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
        )


def preload() -> None:
    from tests.crash.often import sitecustomize  # noqa: F401  (before the modules that it changes)

    for name in PRELOADED:
        importlib.import_module(name)


def _dape(words: Sequence[str], folder: Path) -> int:
    import torch

    from dape.cli import main
    from dape.experiments import executor

    os.chdir(folder)
    random.seed()  # copies would all draw the same, and hide what is not seeded
    torch.seed()
    executor.start = _worker  # pyright: ignore[reportAttributeAccessIssue]
    return main(list(words))


def _worker(task: Any) -> Process:
    task.folder.mkdir(parents=True, exist_ok=True)

    def work() -> int:
        sys.argv = [WORKER, str(task.folder)]
        runpy.run_module(WORKER, run_name="__main__", alter_sys=True)
        return 0

    return Fork(work, task.log)


class Fork:
    """A copy of this process that does some work, in a session of its own."""

    def __init__(self, work: Callable[[], int], log: Path) -> None:
        self.returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal while it forks would find the handlers of this process in the copy, or be lost in a hook of fork.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self.pid = os.fork()
        if self.pid == 0:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if self.pid == 0:
            os._exit(_end_of(work, log))

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("fork", timeout)
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(9)


def _end_of(work: Callable[[], int], log: Path) -> int:
    """The exit code, as the interpreter would have it."""
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        return work()
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else 1
    except KeyboardInterrupt:
        traceback.print_exc()
        return 130
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
