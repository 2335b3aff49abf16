"""Settings of ``dape probe``. No torch here: the command line imports this module."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from dape.errors import UsageError, check_counts
from dape.tasks.small_models import SmallModels

Task = Literal["recall", "passkey"]
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
LONGEST = 32
"""Tests go up to this many training lengths by default."""


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """Questions in text, for a trained language model."""

    tasks: tuple[Task, ...]
    lengths: tuple[int, ...]
    depths: tuple[float, ...] = DEPTHS
    samples: int = 64
    pairs: int = 4
    """Pairs of words in the text of the task recall. One of them is asked for."""
    seed: int = 0
    """Seed of keys, words and places."""

    def check(self) -> None:
        if not self.tasks:
            raise UsageError("`tasks` needs at least one task: recall, passkey")
        check_places(self.lengths, self.depths)
        check_counts(self, "samples", "pairs")
        if self.seed < 0:
            raise UsageError(f"`seed` must be 0 or more, got {self.seed}")
        if self.pairs > MOST_WORD_PAIRS:
            raise UsageError(f"`pairs` may be at most {MOST_WORD_PAIRS} in text, got {self.pairs}")


MOST_WORD_PAIRS = 15
"""The values and the wrong answer begin with different consonants, of which there are 16."""


@dataclass(frozen=True, kw_only=True)
class RecallConfig(SmallModels):
    """Associative recall, for models trained on nothing else. Every method and seed has these settings."""

    lengths: tuple[int, ...]
    """Test lengths."""
    depths: tuple[float, ...] = DEPTHS
    """Positions in the context of the pairs that are asked for, in the test by depth (0: beginning, 1: end)."""
    test_pairs: tuple[int, ...] = (4, 8, 16)
    """Numbers of pairs in the test by pairs."""
    samples: int = 32
    """Test sequences per length and number of pairs, the same for every method and seed."""
    pairs: int = 8
    """Most pairs in a training sequence, and the number in the test by depth."""
    keys: int = 32
    """Different keys; as many different values and kinds of noise."""

    @property
    def vocabulary(self) -> int:
        return 3 * self.keys

    def check(self) -> None:
        check_places(self.lengths, self.depths)
        check_counts(self, "samples")
        self.check_sizes()
        if not 2 <= self.pairs <= self.keys or not all(1 <= pairs <= self.keys for pairs in self.test_pairs):
            raise UsageError(
                f"`pairs` must be 2 to {self.keys} and `test_pairs` 1 to {self.keys}, because there are {self.keys} "
                f"keys; got {self.pairs} and {', '.join(map(str, self.test_pairs))}"
            )
        if self.train_length < SHORTEST or self.train_length < 5 * self.pairs:
            raise UsageError(
                f"`train_length` {self.train_length} is too short for {self.pairs} pairs and their questions; "
                f"it must be at least {max(SHORTEST, 5 * self.pairs)}"
            )
        self._check_tests()

    def _check_tests(self) -> None:
        if len(self.depths) > self.pairs:
            raise UsageError(f"{len(self.depths)} `depths` need at least as many `pairs`, got {self.pairs}")
        shortest = shortest_test(self.pairs)
        if min(self.lengths) < shortest:
            raise UsageError(
                f"length {min(self.lengths)} is too short for {self.pairs} pairs and their questions; "
                f"it must be at least {shortest}"
            )
        places = depth_places(self.depths, min(self.lengths) + 1 - 2 * self.pairs)
        if any(after - before < 2 for before, after in pairwise(places)):
            raise UsageError(f"`depths` are too close to each other for pairs in length {min(self.lengths)}")


SHORTEST = 8
"""Shortest training sequence: two pairs and two questions."""


def shortest_test(pairs: int) -> int:
    """The length for ``pairs`` pairs, a question for each, and some noise, so that the places of pairs vary."""
    return 5 * pairs


def depth_places(depths: Sequence[float], context: int) -> list[int]:
    """The first tokens of pairs at these depths among ``context`` tokens. Depth 1 is the last pair of tokens."""
    return [round(depth * (context - 2)) for depth in sorted(depths)]


def check_places(lengths: Sequence[int], depths: Sequence[float]) -> None:
    """Raise UsageError on invalid lengths or depths."""
    if not lengths or not depths:
        raise UsageError(f"`{'depths' if lengths else 'lengths'}` needs at least one value")
    if min(lengths) < 1:
        raise UsageError(f"`lengths` must be positive, got {min(lengths)}")
    wrong = [depth for depth in depths if not 0 <= depth <= 1]
    if wrong:
        raise UsageError(f"`depths` must lie between 0 (the beginning) and 1 (the end), got {wrong[0]:g}")
    for name, values in (("lengths", lengths), ("depths", depths)):
        if len(set(values)) < len(values):
            raise UsageError(f"`{name}` has a value twice")


def doublings(length: int) -> tuple[int, ...]:
    return tuple(length << n for n in range(LONGEST.bit_length()))


def given(**settings: Any) -> dict[str, Any]:
    """The settings that are not None, which stands for the default."""
    return {name: value for name, value in settings.items() if value is not None}
