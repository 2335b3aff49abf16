"""Ctrl-C and SIGTERM as a request to stop at the next good moment. No torch here."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType


class Interruption:
    """While this context is open, the first SIGINT or SIGTERM only sets ``signal``; a second one interrupts at once."""

    def __init__(self, message: str = "stopping after this step and saving; once more to stop at once") -> None:
        self.signal: int | None = None
        self._message = message
        self._before: dict[int, signal.Handlers | object] = {}

    def __enter__(self) -> "Interruption":
        for number in _heeded(signal.SIGINT, signal.SIGTERM):
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
            raise KeyboardInterrupt
        self.signal = number
        print(f"\ndape: {self._message}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that was closed, as KeyboardInterrupt: the same orderly end."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    hang_up = [signal.SIGHUP] if hasattr(signal, "SIGHUP") else []
    before = {number: signal.signal(number, interrupt) for number in _heeded(signal.SIGTERM, *hang_up)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _heeded(*numbers: signal.Signals) -> list[signal.Signals]:
    """Without those that whoever started this wanted ignored, as nohup does with SIGHUP."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
