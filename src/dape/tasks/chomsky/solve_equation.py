"""The digit x that solves an equation modulo 5.

( 3 - - x ) = 2 holds for x = 4: 3 + 4 = 7. The left side is an expression in brackets without products, so there is
always exactly one solution. Inputs with fewer than three tokens are zeros, with the answer 0.
"""

import numpy as np
from jaxtyping import Int

from dape.tasks.chomsky.base import OneAnswer, Tokens
from dape.tasks.chomsky.expressions import MODULUS, Alphabet, draw_expressions, values

UNKNOWN, EQUALS = 9, 10


class SolveEquation(OneAnswer):
    inputs = (*"01234", "+", "-", "(", ")", "x", "=")
    outputs = tuple("01234")
    alphabet = Alphabet(operators=(5, 6), opening=7, closing=8)

    def draw(self, generator: np.random.Generator, batch: int, length: int) -> Tokens:
        if length < 3:
            return np.zeros((batch, length), dtype=np.int64)
        left = draw_expressions(generator, batch, length - 2, self.alphabet)
        right = values(left, self.alphabet)
        hidden = next_digit(left, generator.integers(0, length - 2, batch))
        left[np.arange(batch), hidden] = UNKNOWN
        return np.concatenate([left, np.full((batch, 1), EQUALS), right[:, None]], axis=1)

    def solve(self, inputs: Tokens) -> Tokens:
        """The left side is a + b x with b = 1 or -1, which follow from its values at x = 0 and x = 1."""
        if inputs.shape[1] < 3:
            return inputs[:, :1]
        left, right = inputs[:, :-2], inputs[:, -1]
        both = np.concatenate([np.where(left == UNKNOWN, x, left) for x in (0, 1)])
        at_zero, at_one = values(both, self.alphabet).reshape(2, -1)
        return ((right - at_zero) * (at_one - at_zero) % MODULUS)[:, None]


def next_digit(tokens: Tokens, start: Int[np.ndarray, " b"]) -> Int[np.ndarray, " b"]:
    """The first place with a digit at or after ``start``. The search wraps around."""
    length = tokens.shape[1]
    places = (start[:, None] + np.arange(length)) % length
    ahead = (np.take_along_axis(tokens, places, axis=1) < MODULUS).argmax(axis=1)
    return (start + ahead) % length
