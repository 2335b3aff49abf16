"""Ctrl-C, SIGTERM and a closed terminal as a request to stop at the end of a step. No torch here."""

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
    """While this context is open, the first SIGINT, SIGTERM or SIGHUP only sets ``signal``; a second one raises
    KeyboardInterrupt.

    ``patient`` ignores the second one: a process of several may receive the same request twice, for instance from the
    terminal and from its launcher.
    """

    def __init__(
        self, message: str = "stopping after this step and saving; once more to stop at once", *, patient: bool = False
    ) -> None:
        self.signal: int | None = None
        self._message, self._patient = message, patient
        self._before: dict[int, signal.Handlers | object] = {}

    def __enter__(self) -> "Interruption":
        self._terminal = _terminal()
        for number in _not_ignored(signal.SIGINT, signal.SIGTERM, *HANG_UP):
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
        if self.signal is not None:
            if self._patient:
                return
            raise KeyboardInterrupt
        self.signal = number
        if number in HANG_UP:
            _redirect_to_null(self._terminal)
        if self._message:
            print(f"\ndape: {self._message}", file=sys.stderr, flush=True)


def stop_with(parent: int) -> None:
    """Send SIGTERM to this process once its ``parent`` has ended: otherwise it would work beside the processes of a new
    parent, in the same folder. Without a handler for SIGTERM, this process ends."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP (the terminal was closed) into KeyboardInterrupt: the same orderly end as for Ctrl-C."""
    terminal = _terminal()

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if number in HANG_UP:
            _redirect_to_null(terminal)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _not_ignored(signal.SIGTERM, *HANG_UP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminal() -> list[int]:
    """Which of standard input, output and error are a terminal. Must be asked before the terminal is closed."""
    return [handle for handle in (0, 1, 2) if os.isatty(handle)]


def _redirect_to_null(handles: list[int]) -> None:
    """Discard output for a closed terminal: writing to it would raise an error before the run is saved."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for handle in handles:
        os.dup2(nowhere, handle)
    os.close(nowhere)


def _not_ignored(*numbers: signal.Signals) -> list[signal.Signals]:
    """The signals that the caller of this program did not ask to ignore, as nohup does with SIGHUP."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
