"""The symbols in ascending order: 4 2 1 3 0 2 becomes 0 1 2 2 3 4."""

import numpy as np

from dape.tasks.chomsky.base import Task, Tokens


class BucketSort(Task):
    inputs = outputs = tuple("01234")

    def output_length(self, length: int) -> int:
        return length

    def solve(self, inputs: Tokens) -> Tokens:
        return np.sort(inputs, axis=1)
