"""Is the number of neighbours that differ even?

1 1 0 0 1 has two such pairs, 1 0 and 0 1, so the answer is even (class 0). Each pair changes the symbol, so the number
is even exactly if the first and the last symbol are the same. A single symbol has no neighbours, and 0 is even.
"""

from dape.tasks.chomsky.base import OneAnswer, Tokens


class EvenPairs(OneAnswer):
    inputs = ("0", "1")
    outputs = ("even", "odd")

    def solve(self, inputs: Tokens) -> Tokens:
        return inputs[:, :1] ^ inputs[:, -1:]
