import os
import signal
from collections.abc import Callable, Iterator, Sequence

import pytest

# Where workers of pytest-xdist share the cores, threads that wait for each other would keep them busy with waiting: the
# tests of several threads take four times as long. OpenMP reads it when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

from dape.experiments import worker
from dape.experiments.executor import Local, Task


def pytest_configure() -> None:
    """A shell that starts the tests in the background has them ignore Ctrl-C, and with them the commands that they
    start and interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def one_thread():
    """The tensors of tests are small: a second core is mostly waited for, for seconds if it is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch):
    """Tables as wide as they are without one, whoever runs the tests: pytest-xdist says how wide its terminal is."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def forget_graphs() -> Iterator[None]:
    """Compile anew, whatever earlier tests compiled."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def here(monkeypatch) -> list[str]:
    """Runs that would each be a process take place in this one, one after the other; their names, as they begin."""
    names: list[str] = []

    def in_process(self: Local, tasks: Sequence[Task], *, tick: Callable) -> Iterator[tuple[Task, int]]:
        for task in tasks:
            names.append(task.name)
            tick([task])
            try:
                code = worker.main(task.folder)
            except Exception as error:  # the last words of a process
                task.log.write_text(f"{type(error).__name__}: {error}\n")
                code = 1
            yield task, code

    monkeypatch.setattr(Local, "run", in_process)
    return names
