"""The first, third, fifth ... symbol, then the second, fourth ...

0 0 0 1 0 0 becomes 0 0 0 0 1 0: places 1, 3, 5 hold 0 0 0, places 2, 4, 6 hold 0 1 0. DeepMind's program counts places
from zero and begins with the second, fourth ... symbol, unlike its description. ``compat="deepmind"`` does the same.
"""

import numpy as np

from dape.tasks.chomsky.base import Task, Tokens


class OddsFirst(Task):
    inputs = outputs = ("0", "1")

    def output_length(self, length: int) -> int:
        return length

    def solve(self, inputs: Tokens) -> Tokens:
        halves = (inputs[:, 0::2], inputs[:, 1::2])
        return np.concatenate(halves[::-1] if self.compat == "deepmind" else halves, axis=1)
