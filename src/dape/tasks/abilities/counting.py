"""Counting: how often did this symbol occur?

    . a . . b a . . c . a .    ?b 1 ?a 3 ...

Symbols a to h (0 to 7) occur up to nine times each, at all lengths; noise 8 to 23 fills the rest; questions 24 to 31,
counts 32 to 41. The number of occurrences stays the same while the context grows, so only their distances change."""

import numpy as np

from dape.tasks.abilities.base import Ability, Examples, one_by_one

SYMBOLS, NOISE, NOISES, ASK, COUNT, MOST, QUESTIONS = 8, 8, 16, 24, 32, 9, 4


class Counting(Ability):
    vocabulary = 42
    shortest = 16

    def draw(self, generator: np.random.Generator, size: int, length: int) -> Examples:
        return one_by_one(size, lambda: self._one(generator, length))

    def _one(self, generator: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
        room = length + 1 - 2 * QUESTIONS
        chosen = generator.permutation(SYMBOLS)[:QUESTIONS]
        counts = generator.integers(0, min(MOST, room // QUESTIONS) + 1, QUESTIONS)
        body = np.concatenate([np.repeat(chosen, counts), NOISE + generator.integers(0, NOISES, room - counts.sum())])
        asked = np.stack([ASK + chosen, COUNT + counts], axis=1).ravel()
        return np.concatenate([generator.permutation(body), asked]), np.arange(room + 1, length + 1, 2)
