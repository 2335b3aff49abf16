"""The sum of two binary numbers, lowest bit first.

1 1 + 1 0 1 is 3 + 5 = 8: 0 0 0 1, then the terminator $ and zeros that do not count. With fewer than three tokens the
input is one number without an operator, and the sum is that number.
"""

import numpy as np

from dape.tasks.chomsky.base import Tokens, UpToTerminator
from dape.tasks.chomsky.binary import carried, draw_operands, operands, significant


class BinaryAddition(UpToTerminator):
    inputs = ("0", "1", "+")

    def output_length(self, length: int) -> int:
        return length + 1

    def draw(self, generator: np.random.Generator, batch: int, length: int) -> Tokens:
        return draw_operands(generator, batch, length)

    def solve(self, inputs: Tokens) -> Tokens:
        first, second = operands(inputs)
        bits = carried(first + second)
        return self.terminated(bits, significant(bits), inputs.shape[1] + 1)
