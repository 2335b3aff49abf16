"""The reversed string: 1 1 0 1 0 becomes 0 1 0 1 1."""

from dape.tasks.chomsky.base import Task, Tokens


class ReverseString(Task):
    inputs = outputs = ("0", "1")

    def output_length(self, length: int) -> int:
        return length

    def solve(self, inputs: Tokens) -> Tokens:
        return inputs[:, ::-1]
