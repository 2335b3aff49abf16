"""Is the number of ones even?

1 0 1 1 has three ones: odd (class 1).
"""

from dape.tasks.chomsky.base import OneAnswer, Tokens


class ParityCheck(OneAnswer):
    inputs = ("0", "1")
    outputs = ("even", "odd")

    def solve(self, inputs: Tokens) -> Tokens:
        return inputs.sum(axis=1, keepdims=True) % 2
