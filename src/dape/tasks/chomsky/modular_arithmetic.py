"""The value modulo 5 of a sum of products, without brackets.

3 - 2 * 2 - 2 is 3 - 4 - 2 = -3, which is 2 modulo 5. Digits and operators alternate, so that inputs of even length are
one token shorter.
"""

import numpy as np

from dape.tasks.chomsky.base import OneAnswer, Tokens

MODULUS = 5
PLUS, MINUS, TIMES = 5, 6, 7


class ModularArithmetic(OneAnswer):
    inputs = (*"01234", "+", "-", "*", "_")
    outputs = tuple("01234")

    def input_length(self, length: int) -> int:
        return length - 1 + length % 2

    def draw(self, generator: np.random.Generator, batch: int, length: int) -> Tokens:
        tokens = generator.integers(0, MODULUS, (batch, self.input_length(length)))
        tokens[:, 1::2] = generator.integers(PLUS, TIMES + 1, tokens[:, 1::2].shape)
        return tokens

    def solve(self, inputs: Tokens) -> Tokens:
        """Reads from left to right, with the sum of finished products and the last product, which may continue."""
        total, product = np.zeros(len(inputs), dtype=np.int64), inputs[:, 0]
        for operator, digit in zip(inputs[:, 1::2].T, inputs[:, 2::2].T, strict=True):
            grows = operator == TIMES
            total = np.where(grows, total, total + product)
            product = np.where(grows, product, np.where(operator == MINUS, -1, 1)) * digit % MODULUS
        return (total + product)[:, None] % MODULUS
