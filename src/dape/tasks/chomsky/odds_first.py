"""The first, third, fifth ... symbol, then the second, fourth ...

0 0 0 1 0 0 becomes 0 0 0 0 1 0: places 1, 3, 5 hold 0 0 0, places 2, 4, 6 hold 0 1 0. DeepMind's program counts places
from zero and so begins with the second, fourth ... symbol, against its own description; ``compat="deepmind"`` does too.
"""

import numpy as np

from dape.tasks.chomsky.base import Task, Tokens


class OddsFirst(Task):
    inputs = outputs = ("0", "1")

    def output_length(self, length: int) -> int:
        return length

    def draw(self, generator: np.random.Generator, batch: int, length: int) -> Tokens:
        return generator.integers(0, 2, (batch, length))

    def solve(self, inputs: Tokens) -> Tokens:
        halves = (inputs[:, 0::2], inputs[:, 1::2])
        return np.concatenate(halves[::-1] if self.compat == "deepmind" else halves, axis=1)
