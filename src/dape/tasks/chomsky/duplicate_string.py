"""The string twice: 1 0 0 becomes 1 0 0 1 0 0."""

import numpy as np

from dape.tasks.chomsky.base import Task, Tokens


class DuplicateString(Task):
    inputs = outputs = ("0", "1")

    def output_length(self, length: int) -> int:
        return 2 * length

    def solve(self, inputs: Tokens) -> Tokens:
        return np.concatenate([inputs, inputs], axis=1)
