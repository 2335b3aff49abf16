"""The final stack after pushing and popping, from its top.

The stack 1 0 0 (bottom first), then push 1, pop, pop, push 0 gives 1 0 0, which is read from the top as 0 0 1, then the
terminator $. Tokens 0 and 1 are the initial stack, 2 pops, 3 pushes 0, 4 pushes 1. Popping an empty stack does nothing.
The output has room for the whole input and the terminator, and ends in zeros that do not count.
"""

import numpy as np

from dape.tasks.chomsky.base import Tokens, UpToTerminator

POP, PUSH = 2, 3


class StackManipulation(UpToTerminator):
    inputs = ("0", "1", "pop", "push0", "push1")

    def output_length(self, length: int) -> int:
        return length + 1

    def draw(self, generator: np.random.Generator, batch: int, length: int) -> Tokens:
        if length == 1:
            return generator.integers(0, 2, (batch, 1))
        actions = generator.integers(POP, PUSH + 2, (batch, length))
        bits = generator.integers(0, 2, (batch, length))
        initial = generator.integers(1, length, (batch, 1))
        return np.where(np.arange(length) < initial, bits, actions)

    def solve(self, inputs: Tokens) -> Tokens:
        batch, length = inputs.shape
        rows, stack, size = np.arange(batch), np.zeros((batch, length), dtype=np.int64), np.zeros(batch, dtype=np.int64)
        pops, bits = inputs == POP, np.isin(inputs, (1, PUSH + 1))
        for pop, bit in zip(pops.T, bits.T, strict=True):
            stack[rows, size] = bit  # a pop writes too, but above the top: a push overwrites that before it is read
            size = np.maximum(size + np.where(pop, -1, 1), 0)
        from_top = np.take_along_axis(stack, np.maximum(size[:, None] - 1 - np.arange(length), 0), axis=1)
        return self.terminated(from_top, size, length + 1)
