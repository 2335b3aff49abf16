"""The value modulo 5 of an expression in brackets.

( ( - 4 ) + 3 ) is -1, which is 4 modulo 5. ``expressions.py`` describes how expressions are drawn.
"""

import numpy as np

from dape.tasks.chomsky.base import OneAnswer, Tokens
from dape.tasks.chomsky.expressions import Alphabet, draw_expressions, values


class Brackets(OneAnswer):
    inputs = (*"01234", "+", "-", "*", "(", ")", "_")
    outputs = tuple("01234")
    alphabet = Alphabet(operators=(5, 6, 7), opening=8, closing=9)

    def draw(self, generator: np.random.Generator, batch: int, length: int) -> Tokens:
        return draw_expressions(generator, batch, length, self.alphabet)

    def solve(self, inputs: Tokens) -> Tokens:
        return values(inputs, self.alphabet)[:, None]
