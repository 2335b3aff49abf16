"""The last value wins: keys are written again and again, and the question wants what was written last.

    . k3 v1 . . k5 v2 k3 v7 . . k3 v4 .    k5 v2 k3 v4
    ------------- context -------------    - questions -

One key for eight tokens, up to 16, and a question about each. Some keys are written often and some rarely, so that the
last value of a key may be old. Noise 0 to 15, keys 16 to 31, values 32 to 63. Old values of the same key are the
distractors: what is written must be forgotten when it is overwritten."""

import numpy as np

from dape.tasks.abilities.base import Ability, Examples, one_by_one, spread

KEYS, VALUES = 16, 32
KEY, VALUE = 16, 32


class LastValue(Ability):
    vocabulary = 64
    shortest = 12

    def draw(self, generator: np.random.Generator, size: int, length: int) -> Examples:
        return one_by_one(size, lambda: self._one(generator, length))

    def _one(self, generator: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
        keys = generator.permutation(KEYS)[: (length + 1) // 8]
        context = length + 1 - 2 * len(keys)
        tokens = generator.integers(0, KEY, length + 1)
        writes = context // 3
        places = spread(generator, context, writes, 2)
        rank = 1 / np.arange(1, len(keys) + 1)
        drawn = np.concatenate([keys, generator.choice(keys, writes - len(keys), p=rank / rank.sum())])
        drawn = generator.permutation(drawn)
        values = generator.integers(0, VALUES, writes)
        tokens[places], tokens[places + 1] = KEY + drawn, VALUE + values
        last = dict(zip(drawn.tolist(), values.tolist(), strict=True))
        asked = generator.permutation(keys)
        tokens[context::2] = KEY + asked
        tokens[context + 1 :: 2] = [VALUE + last[key] for key in asked.tolist()]
        return tokens, np.arange(context + 1, length + 1, 2)
