"""Needles in a haystack, as RULER has them: a name and a text of three tokens, and the name again at the end.

    single:   . . . . # n7 a b c . . . . . . .    # n7 a b c
    many:     # n2 d e f . # n7 a b c . .         # n7 a b c # n2 d e f

``Needle``: one needle in noise. ``ManyNeedles``: as many needles as there is room for, up to 64, and all of them are
asked for in another order. Noise 0 to 15, the mark 16, names 17 to 80, contents 81 to 112. The first finds anything
that is marked; the second must select one among many."""

import numpy as np

from dape.tasks.abilities.base import Ability, Examples, one_by_one, spread

MARK, NAME, NAMES, CONTENT, CONTENTS, SIZE = 16, 17, 64, 81, 32, 3
WIDTH = 2 + SIZE


class Needle(Ability):
    vocabulary = CONTENT + CONTENTS
    shortest = 12
    most = 1

    def draw(self, generator: np.random.Generator, size: int, length: int) -> Examples:
        return one_by_one(size, lambda: self._one(generator, length))

    def _one(self, generator: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
        count = min((length + 1) // (2 * WIDTH), self.most)
        context = length + 1 - WIDTH * count
        names = NAME + generator.permutation(NAMES)[:count]
        contents = CONTENT + generator.integers(0, CONTENTS, (count, SIZE))
        needles = np.column_stack([np.full(count, MARK), names, contents])
        tokens = generator.integers(0, MARK, length + 1)
        for place, needle in zip(spread(generator, context, count, WIDTH), needles, strict=True):
            tokens[place : place + WIDTH] = needle
        tokens[context:] = generator.permutation(needles).ravel()
        answers = context + np.arange(WIDTH * count).reshape(count, WIDTH)[:, -SIZE:]
        return tokens, answers.ravel()


class ManyNeedles(Needle):
    most = NAMES
