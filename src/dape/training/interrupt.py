"""Ctrl-C, SIGTERM and a closed terminal as a request to stop at the next good moment. No torch here."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

HANG_UP = [signal.SIGHUP] if hasattr(signal, "SIGHUP") else []


class Interruption:
    """While this context is open, the first SIGINT, SIGTERM or SIGHUP only sets ``signal``; a second one interrupts at
    once. ``patient``: it does not, as for a process of several, which may hear of it from more than one side."""

    def __init__(
        self, message: str = "stopping after this step and saving; once more to stop at once", *, patient: bool = False
    ) -> None:
        self.signal: int | None = None
        self._message, self._patient = message, patient
        self._before: dict[int, signal.Handlers | object] = {}

    def __enter__(self) -> "Interruption":
        self._terminal = _terminal()
        for number in _heeded(signal.SIGINT, signal.SIGTERM, *HANG_UP):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        return 0 if self.signal is None else 128 + self.signal

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is not None and self._patient:
            return
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        if number in HANG_UP:
            _forget(self._terminal)
        if self._message:
            print(f"\ndape: {self._message}", file=sys.stderr, flush=True)


def stop_with(parent: int) -> None:
    """SIGTERM for this process once ``parent``, which started it, has ended: whoever takes the parent's place would
    collide with this one. Where nothing handles the signal yet, this process ends."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that was closed, as KeyboardInterrupt: the same orderly end."""

    terminal = _terminal()

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if number in HANG_UP:
            _forget(terminal)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _heeded(signal.SIGTERM, *HANG_UP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminal() -> list[int]:
    """Which of standard input, output and errors are one; once it is closed, it is none any more."""
    return [handle for handle in (0, 1, 2) if os.isatty(handle)]


def _forget(handles: list[int]) -> None:
    """Say nothing any more to a terminal that was closed: it would answer with an error, before anything is saved."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for handle in handles:
        os.dup2(nowhere, handle)
    os.close(nowhere)


def _heeded(*numbers: signal.Signals) -> list[signal.Signals]:
    """Without those that whoever started this wanted ignored, as nohup does with SIGHUP."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
