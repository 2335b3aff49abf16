"""Copying: a text, then the same text again.

    a d a c b # a d a c b

Symbols 0 to 7, so that each occurs often and no symbol says where it stood; the mark 8. All of the copy is scored. A
model needs the place, n + 1 tokens back, at an n that it has not seen."""

import numpy as np

from dape.tasks.abilities.base import Ability, Examples

SYMBOLS, MARK = 8, 8


class Copying(Ability):
    vocabulary = 10
    shortest = 6

    def draw(self, generator: np.random.Generator, size: int, length: int) -> Examples:
        text = length // 2
        tokens = np.full((size, length + 1), MARK + 1)  # an odd token is left over in front
        drawn = generator.integers(0, SYMBOLS, (size, text))
        tokens[:, -text:] = drawn
        tokens[:, -text - 1] = MARK
        tokens[:, -2 * text - 1 : -text - 1] = drawn
        return Examples(tokens, np.tile(np.arange(length + 1 - text, length + 1), (size, 1)))
