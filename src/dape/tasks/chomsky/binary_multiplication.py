"""The product of two binary numbers, lowest bit first.

0 1 * 1 1 is 2 * 3 = 6: 0 1 1, then the terminator $ and zeros that do not count. With fewer than three tokens there is
no operator: the answer is the terminator for one token, and a zero and the terminator for two.
"""

import numpy as np
from jaxtyping import Int

from dape.tasks.chomsky.base import Tokens, UpToTerminator
from dape.tasks.chomsky.binary import carried, draw_operands, operands, significant


class BinaryMultiplication(UpToTerminator):
    inputs = ("0", "1", "*")

    def output_length(self, length: int) -> int:
        return length

    def draw(self, generator: np.random.Generator, batch: int, length: int) -> Tokens:
        return draw_operands(generator, batch, length)

    def solve(self, inputs: Tokens) -> Tokens:
        length = inputs.shape[1]
        if length < 3:
            return self.terminated(np.zeros_like(inputs), np.full(len(inputs), length - 1), length)
        first, second = operands(inputs)
        bits = carried(convolved(first, second))
        return self.terminated(bits, significant(bits), length)


def convolved(first: Tokens, second: Tokens) -> Int[np.ndarray, "b t"]:
    """The number of pairs of bits for each place of the product. Rounding is exact, as counts are far below 2^53."""
    size = first.shape[1]
    spectrum = np.fft.rfft(first, 2 * size) * np.fft.rfft(second, 2 * size)
    return np.rint(np.fft.irfft(spectrum, 2 * size)[:, :size]).astype(np.int64)
