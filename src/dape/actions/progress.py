"""Progress of work on standard error, and estimates of the time left."""

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from dape.verbosity import is_quiet, is_verbose

if TYPE_CHECKING:
    from rich.console import Console

AGREEMENT = 1.3
"""The time left is shown once recent estimates of the whole time differ by at most this factor."""
FEWEST_ESTIMATES = 3


def progress_console() -> "tuple[Console, bool]":
    """A console on standard error, and whether it can redraw a line.

    A terminal can, and a notebook with ipywidgets. In a notebook without ipywidgets rich would only show a warning, so
    lines are written there as into a file.
    """
    from rich.console import Console

    console = Console(stderr=True, quiet=is_quiet())
    if console.is_jupyter and find_spec("ipywidgets") is None:
        console = Console(stderr=True, force_jupyter=False, force_terminal=False, quiet=is_quiet())
    return console, console.is_terminal or console.is_jupyter


class TimeLeft:
    """An estimate of the time left, given only once it is reliable: first steps are often slower than later ones.

    The estimate extrapolates the second half of the time so far. It is given when all estimates of the whole time that
    were made in the last quarter of the time so far agree to 30%.
    """

    def __init__(self, done: float = 0.0) -> None:
        """``done``: the share of the work that was finished before."""
        self._begin = time.monotonic()
        self._past: deque[tuple[float, float, float]] = deque([(0.0, done, math.inf)])

    def seconds(self, done: float) -> float | None:
        """Seconds left when this share of the work is done; None if the estimates do not agree yet."""
        spent = time.monotonic() - self._begin
        while len(self._past) > 1 and self._past[0][0] < spent / 2:
            self._past.popleft()
        since, before, _ = self._past[0]
        left = (1 - done) * (spent - since) / (done - before) if done > before else math.inf
        self._past.append((spent, done, spent + left))
        recent = sum(at >= 0.75 * spent for at, _, _ in self._past)
        expected = [whole for _, _, whole in self._past][-max(recent, FEWEST_ESTIMATES) :]
        agreed = len(expected) >= FEWEST_ESTIMATES and max(expected) <= AGREEMENT * min(expected) < math.inf
        return left if agreed else None

    def words(self, done: float) -> str:
        """``about 3 min left``, or an empty text if that is not known."""
        seconds = self.seconds(done) if done < 1 else None
        return "" if seconds is None else f"about {duration(seconds)} left"


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class ProgressLine:
    """One line on standard error, redrawn on a terminal; elsewhere a line at once and every ten seconds.

    With --quiet, nothing.
    """

    SECONDS, VERBOSE_SECONDS, REDRAWN = 10.0, 2.0, 0.1

    def __init__(self, done: float = 0.0) -> None:
        """``done``: the share of the work that was finished before."""
        self._quiet, self._drawn = is_quiet(), sys.stderr.isatty()
        pause = self.VERBOSE_SECONDS if is_verbose() else self.SECONDS
        self._pause = self.REDRAWN if self._drawn else pause
        self._spoken = -math.inf
        self._left = TimeLeft(done)

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn and not self._quiet:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def show(self, text: str, done: float | None = None) -> None:
        """Show ``text``; with ``done``, the finished share of the work, also the time left."""
        left = "" if done is None else self._left.words(done)
        now = time.monotonic()
        if self._quiet or now - self._spoken < self._pause:
            return
        self._spoken = now
        whole = ", ".join(part for part in (text, left) if part)
        if self._drawn:
            print(f"\r\033[K{whole}", end="", file=sys.stderr, flush=True)
        else:
            print(whole, file=sys.stderr, flush=True)


def window_watch(line: ProgressLine, lengths: Sequence[int]) -> Callable[[int, int, int], None]:
    """A function that shows progress over windows of several lengths, shortest first.

    It takes the length, the number of finished windows and the number of all windows of this length.
    """
    every = sorted(set(lengths))

    def watch(length: int, done: int, total: int) -> None:
        before = sum(each for each in every if each < length)  # the cost of a window grows about as its length
        line.show(f"{length} tokens: window {done}/{total}", (before + length * done / total) / sum(every))

    return watch
