"""The string from its end: 1 1 0 1 0 becomes 0 1 0 1 1."""

import numpy as np

from dape.tasks.chomsky.base import Task, Tokens


class ReverseString(Task):
    inputs = outputs = ("0", "1")

    def output_length(self, length: int) -> int:
        return length

    def draw(self, generator: np.random.Generator, batch: int, length: int) -> Tokens:
        return generator.integers(0, 2, (batch, length))

    def solve(self, inputs: Tokens) -> Tokens:
        return inputs[:, ::-1]
