"""The whole part of the square root of a binary number, highest bit first.

1 0 0 0 1 0 is 34, whose root is 5.8...: 1 0 1. (The papers' examples, 34 to 110 and 37 to 101, are wrong.) The number
is never 0. The root has half as many bits as the number, rounded up.
"""

import math

import numpy as np

from dape.tasks.chomsky.base import Task, Tokens
from dape.tasks.chomsky.binary import nonzero


class ComputeSqrt(Task):
    inputs = outputs = ("0", "1")

    def output_length(self, length: int) -> int:
        return (length + 1) // 2

    def draw(self, generator: np.random.Generator, batch: int, length: int) -> Tokens:
        return nonzero(generator, np.ones((batch, length), dtype=bool))

    def solve(self, inputs: Tokens) -> Tokens:
        """Computes each root with Python's integers, because numbers of 500 bits do not fit into a machine word."""
        width = -inputs.shape[1] % 8
        packed = np.packbits(np.pad(inputs, ((0, 0), (width, 0))).astype(np.uint8), axis=1)
        size = packed.shape[1]
        roots = [math.isqrt(int.from_bytes(row.tobytes(), "big")).to_bytes(size, "big") for row in packed]
        bits = np.unpackbits(np.frombuffer(b"".join(roots), dtype=np.uint8).reshape(-1, size), axis=1)
        return bits[:, 8 * size - self.output_length(inputs.shape[1]) :].astype(np.int64)
