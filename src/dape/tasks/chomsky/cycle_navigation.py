"""Where does a walk on a cycle of five places end, starting from place 0?

> > < . > moves +1 +1 -1 0 +1, in total +2: place 2. Tokens: 0 is a step back, 1 stays, 2 is a step forward.
"""

from dape.tasks.chomsky.base import OneAnswer, Tokens

PLACES = 5


class CycleNavigation(OneAnswer):
    inputs = ("<", ".", ">")
    outputs = tuple("01234")

    def solve(self, inputs: Tokens) -> Tokens:
        return (inputs - 1).sum(axis=1, keepdims=True) % PLACES
