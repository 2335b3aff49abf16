"""The string twice: 1 0 0 becomes 1 0 0 1 0 0."""

import numpy as np

from dape.tasks.chomsky.base import Task, Tokens


class DuplicateString(Task):
    inputs = outputs = ("0", "1")

    def output_length(self, length: int) -> int:
        return 2 * length

    def draw(self, generator: np.random.Generator, batch: int, length: int) -> Tokens:
        return generator.integers(0, 2, (batch, length))

    def solve(self, inputs: Tokens) -> Tokens:
        return np.concatenate([inputs, inputs], axis=1)
