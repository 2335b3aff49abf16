"""Keys of two tokens: neither of them says anything alone.

    . a1 b4 v2 . a1 b2 v5 . . a3 b4 v7 .    a1 b2 v5
    -------------- context -------------    questions

Noise 0 to 15, first tokens of keys 16 to 23, second ones 24 to 31, values 32 to 63. Each first and second token occurs
in several keys: attention must put two neighbouring tokens together before it looks for them."""

import numpy as np

from dape.tasks.abilities.base import Ability, Examples, one_by_one, spread

FIRST, SECOND, VALUE, SIDE, VALUES = 16, 24, 32, 8, 32
PAIRS = 8


class TwoTokenKeys(Ability):
    vocabulary = 64
    shortest = 8

    def draw(self, generator: np.random.Generator, size: int, length: int) -> Examples:
        pairs = min(PAIRS, (length + 1) // 8)
        return one_by_one(size, lambda: self._one(generator, length, pairs))

    def _one(self, generator: np.random.Generator, length: int, pairs: int) -> tuple[np.ndarray, np.ndarray]:
        context = length + 1 - 3 * pairs
        tokens = generator.integers(0, FIRST, length + 1)
        keys = self._keys(generator, pairs)
        values = VALUE + generator.permutation(VALUES)[:pairs]
        places = spread(generator, context, pairs, 3)
        asked = generator.permutation(pairs)
        for begin, which in ((places, np.arange(pairs)), (context + 3 * np.arange(pairs), asked)):
            tokens[begin], tokens[begin + 1] = FIRST + keys[which] // SIDE, SECOND + keys[which] % SIDE
            tokens[begin + 2] = values[which]
        return tokens, np.arange(context + 2, length + 1, 3)

    @staticmethod
    def _keys(generator: np.random.Generator, pairs: int) -> np.ndarray:
        """Keys from the smallest square of tokens with enough of them, so that a token occurs in several keys."""
        side = int(np.ceil(np.sqrt(pairs)))
        rows, columns = (generator.permutation(SIDE)[:side] for _ in range(2))
        cells = generator.permutation(side * side)[:pairs]
        return SIDE * rows[cells // side] + columns[cells % side]
