"""What a task is: inputs drawn at random, and the one right answer to each."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Int

from dape.tasks.chomsky.catalogue import Compat

Tokens = Int[np.ndarray, "b t"]


@dataclass(frozen=True)
class Sample:
    """A batch of equally long examples."""

    inputs: Int[np.ndarray, "b n"]
    targets: Int[np.ndarray, "b m"]
    mask: Bool[np.ndarray, "b m"]
    """Which targets count in the accuracy; the loss takes them all."""


class Task(ABC):
    """Subclasses draw inputs and solve them; :meth:`solve` knows nothing but the inputs."""

    inputs: ClassVar[tuple[str, ...]]
    """How a person would write the input tokens, by id; ``_`` never occurs."""
    outputs: ClassVar[tuple[str, ...]]

    def __init__(self, *, compat: Compat = "") -> None:
        self.compat = compat

    def sample(self, generator: np.random.Generator, batch: int, length: int) -> Sample:
        if length < 1:
            raise ValueError(f"a length is at least 1, got {length}")
        if batch < 1:
            raise ValueError(f"a batch has at least one example, got {batch}")
        inputs = self.draw(generator, batch, length).astype(np.int64)
        targets = self.solve(inputs).astype(np.int64)
        return Sample(inputs, targets, self.counted(targets))

    def input_length(self, length: int) -> int:
        """Tokens of an input of that nominal length."""
        return length

    @abstractmethod
    def output_length(self, length: int) -> int: ...

    @abstractmethod
    def draw(self, generator: np.random.Generator, batch: int, length: int) -> Tokens: ...

    @abstractmethod
    def solve(self, inputs: Tokens) -> Tokens: ...

    def counted(self, targets: Tokens) -> Bool[np.ndarray, "b m"]:
        return np.ones(targets.shape, dtype=bool)


class OneAnswer(Task):
    """The output is a single class."""

    def output_length(self, length: int) -> int:
        return 1


class UpToTerminator(Task):
    """The output ends with a terminator; what follows is zeros, which are trained on but not scored."""

    outputs = ("0", "1", "$")
    terminator: ClassVar[int] = 2

    def counted(self, targets: Tokens) -> Bool[np.ndarray, "b m"]:
        return np.cumsum(targets == self.terminator, axis=1) - (targets == self.terminator) == 0

    def terminated(self, values: Tokens, counts: Int[np.ndarray, " b"], length: int) -> Tokens:
        """The first ``counts`` of ``values`` per row, the terminator, zeros up to ``length``."""
        places = np.arange(length)
        padded = np.zeros((len(values), length), dtype=np.int64)
        width = min(length, values.shape[1])
        padded[:, :width] = values[:, :width]
        padded[places >= counts[:, None]] = 0
        padded[places == counts[:, None]] = self.terminator
        return padded
