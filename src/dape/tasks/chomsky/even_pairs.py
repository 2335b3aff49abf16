"""Are neighbours that differ even in number?

1 1 0 0 1 has two such pairs, 1 0 and 0 1, so the answer is even (class 0). A string that leaves its first symbol as
often as it returns ends with it: the count is even exactly if the first and the last symbol are the same. One symbol
has no neighbours, and zero is even.
"""

import numpy as np

from dape.tasks.chomsky.base import OneAnswer, Tokens


class EvenPairs(OneAnswer):
    inputs = ("0", "1")
    outputs = ("even", "odd")

    def draw(self, generator: np.random.Generator, batch: int, length: int) -> Tokens:
        return generator.integers(0, 2, (batch, length))

    def solve(self, inputs: Tokens) -> Tokens:
        return inputs[:, :1] ^ inputs[:, -1:]
