"""Needles in a haystack, as RULER has them: a name and a text of three tokens, and the name again at the end.

    single:   . . . . # n7 a b c . . . . . . .    # n7 a b c
    many:     # n2 d e f # n7 a b c # n4 g h i    # n7 a b c

``Needle``: one needle in noise. ``ManyNeedles``: the haystack is needles, names of two tokens, one of which is asked
for. Noise 0 to 15, the mark 16, names 17 to 48, contents 49 to 80. The first finds anything that is marked; the second
must select one among as many as there is room for."""

import numpy as np

from dape.tasks.abilities.base import Ability, Examples, one_by_one

MARK, NAME, CONTENT, NAMES, CONTENTS, SIZE = 16, 17, 49, 32, 32, 3


class Needle(Ability):
    vocabulary = 81
    shortest = 12

    def draw(self, generator: np.random.Generator, size: int, length: int) -> Examples:
        return one_by_one(size, lambda: self._one(generator, length))

    def _one(self, generator: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
        tokens = generator.integers(0, MARK, length + 1)
        needle = _needle(generator, NAME + generator.integers(0, NAMES, 1))
        context = length + 1 - len(needle)
        place = int(generator.integers(0, context - len(needle) + 1))
        tokens[place : place + len(needle)] = tokens[context:] = needle
        return tokens, np.arange(length + 1 - SIZE, length + 1)


class ManyNeedles(Ability):
    vocabulary = 81
    shortest = 24

    def draw(self, generator: np.random.Generator, size: int, length: int) -> Examples:
        return one_by_one(size, lambda: self._one(generator, length))

    def _one(self, generator: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
        tokens = generator.integers(0, MARK, length + 1)
        width = 3 + SIZE
        count = min((length + 1) // width - 1, NAMES**2)
        names = generator.choice(NAMES**2, count, replace=False)
        needles = [_needle(generator, NAME + np.array([n // NAMES, n % NAMES])) for n in names]
        begin = length + 1 - width * (count + 1)
        for n, needle in enumerate([*needles, needles[int(generator.integers(count))]]):
            tokens[begin + width * n : begin + width * (n + 1)] = needle
        return tokens, np.arange(length + 1 - SIZE, length + 1)


def _needle(generator: np.random.Generator, name: np.ndarray) -> np.ndarray:
    return np.concatenate([[MARK], name, CONTENT + generator.integers(0, CONTENTS, SIZE)])
