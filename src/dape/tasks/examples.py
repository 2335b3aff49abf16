"""Sequences with answers. No torch here."""

from dataclasses import dataclass
from typing import Self

import numpy as np


@dataclass(frozen=True)
class Examples:
    """Sequences of ``length + 1`` tokens: a model reads all but the last, and predicts all but the first."""

    tokens: np.ndarray
    """[sequence, length + 1]"""
    scored: np.ndarray
    """[sequence, answer]: where the tokens stand that are answers, ascending."""

    @property
    def answers(self) -> np.ndarray:
        """[sequence, answer]"""
        return np.take_along_axis(self.tokens, self.scored, axis=1)

    def part(self, first: int, size: int) -> Self:
        """``size`` sequences from ``first`` on."""
        return type(self)(**{name: values[first : first + size] for name, values in vars(self).items()})
