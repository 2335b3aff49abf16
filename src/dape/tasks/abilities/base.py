"""What a test is: sequences of made-up tokens, some of which follow from those before them and are scored.

Everything is a function of the generator, the number of sequences and their length, so that every model is trained and
tested on the same."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from dape.tasks.examples import Examples


class Ability(ABC):
    """A test. Tokens are 0 ... vocabulary - 1; which mean what is said in the docstring of its file."""

    vocabulary: ClassVar[int]
    shortest: ClassVar[int]
    """Tokens below which a sequence cannot hold a question."""

    @abstractmethod
    def draw(self, generator: np.random.Generator, size: int, length: int) -> Examples:
        """``size`` sequences of ``length + 1`` tokens, with equally many answers each."""


def one_by_one(size: int, draw_one) -> Examples:
    """Sequences drawn one after the other: ``draw_one()`` gives tokens and where the answers stand."""
    drawn = [draw_one() for _ in range(size)]
    return Examples(np.stack([tokens for tokens, _ in drawn]), np.stack([scored for _, scored in drawn]))


def spread(generator: np.random.Generator, room: int, count: int, width: int) -> np.ndarray:
    """Where ``count`` pieces of ``width`` tokens begin among ``room``, anywhere, in order, none overlapping."""
    free = room - count * (width - 1)
    return np.sort(generator.choice(free, count, replace=False)) + (width - 1) * np.arange(count)
