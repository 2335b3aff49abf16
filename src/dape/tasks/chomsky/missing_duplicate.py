"""The hidden bit of a string of bits that is repeated.

1 0 1 1 0 ? is 1 0 1 twice, so the hidden bit is 1. Inputs of odd length end with a filler without meaning. The input of
length 1 is always 1, with the answer 1.
"""

import numpy as np

from dape.tasks.chomsky.base import OneAnswer, Tokens

HOLE, FILLER = 2, 3


class MissingDuplicate(OneAnswer):
    inputs = ("0", "1", "?", "#")
    outputs = ("0", "1")

    def draw(self, generator: np.random.Generator, batch: int, length: int) -> Tokens:
        if length == 1:
            return np.ones((batch, 1), dtype=np.int64)
        word = generator.integers(0, 2, (batch, length // 2))
        tokens = np.concatenate([word, word], axis=1)
        tokens[np.arange(batch), generator.integers(0, tokens.shape[1], batch)] = HOLE
        return np.pad(tokens, ((0, 0), (0, length % 2)), constant_values=FILLER)

    def solve(self, inputs: Tokens) -> Tokens:
        half = inputs.shape[1] // 2
        if half == 0:
            return inputs
        hole = (inputs == HOLE).argmax(axis=1)[:, None]
        return np.take_along_axis(inputs, (hole + half) % (2 * half), axis=1)
