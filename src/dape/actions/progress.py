"""How far work is: as a line or a bar that is drawn anew, or as lines of text; and how long it still takes."""

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

KNOWN_TO = 1.3
"""The time left is told when it is known to 30%."""
FEWEST_ESTIMATES = 3


def progress_console() -> "tuple[Console, bool]":
    """A console on standard error, and whether it can draw a line anew: a terminal can, and a notebook with ipywidgets.
    Without them rich shows nothing but a warning, so a notebook is then written to like a file."""
    from rich.console import Console

    console = Console(stderr=True, quiet=is_quiet())
    if console.is_jupyter and find_spec("ipywidgets") is None:
        console = Console(stderr=True, force_jupyter=False, force_terminal=False, quiet=is_quiet())
    return console, console.is_terminal or console.is_jupyter


class TimeLeft:
    """How long work still takes, once that can be said: the first steps are no measure of the others.

    The rest is taken to go on like the second half of the time so far. Once all estimates of the last quarter of that
    time agree to 30% about the whole, the last of them is believed."""

    def __init__(self, done: float = 0.0) -> None:
        """``done``: the share of the work that was done before."""
        self._begin = time.monotonic()
        self._past: deque[tuple[float, float, float]] = deque([(0.0, done, math.inf)])

    def seconds(self, done: float) -> float | None:
        """With this share of the work done; None if it is not known."""
        spent = time.monotonic() - self._begin
        while len(self._past) > 1 and self._past[0][0] < spent / 2:
            self._past.popleft()
        since, before, _ = self._past[0]
        left = (1 - done) * (spent - since) / (done - before) if done > before else math.inf
        self._past.append((spent, done, spent + left))
        recent = sum(at >= 0.75 * spent for at, _, _ in self._past)
        expected = [whole for _, _, whole in self._past][-max(recent, FEWEST_ESTIMATES) :]
        agreed = len(expected) >= FEWEST_ESTIMATES and max(expected) <= KNOWN_TO * min(expected) < math.inf
        return left if agreed else None

    def words(self, done: float) -> str:
        """``about 3 min left``, or nothing."""
        seconds = self.seconds(done) if done < 1 else None
        return "" if seconds is None else f"about {duration(seconds)} left"


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class ProgressLine:
    """One line on standard error that is written over on a terminal; elsewhere a line every ten seconds, and the first
    at once. Nothing if quiet."""

    SECONDS, VERBOSE_SECONDS, REDRAWN = 10.0, 2.0, 0.1

    def __init__(self, done: float = 0.0) -> None:
        """``done``: as for :class:`TimeLeft`."""
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
        """``done``: the share of the whole work, to say how long the rest takes."""
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
    """For who measures windows of several lengths, shortest first: told the length, how many windows of how many."""
    every = sorted(set(lengths))

    def watch(length: int, done: int, total: int) -> None:
        before = sum(each for each in every if each < length)  # a window costs about as much as it has tokens
        line.show(f"{length} tokens: window {done}/{total}", (before + length * done / total) / sum(every))

    return watch
