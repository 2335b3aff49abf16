"""The base of tasks: random inputs, each with one correct output."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Int

from dape.tasks.chomsky.catalogue import Compat

Tokens = Int[np.ndarray, "b t"]


@dataclass(frozen=True)
class Sample:
    """A batch of examples of equal length."""

    inputs: Int[np.ndarray, "b n"]
    targets: Int[np.ndarray, "b m"]
    mask: Bool[np.ndarray, "b m"]
    """The targets that count in the accuracy. The loss uses all targets."""


class Task(ABC):
    """Subclasses have ``inputs``, ``outputs``, :meth:`solve`, and :meth:`draw` if inputs are not uniform symbols."""

    inputs: ClassVar[tuple[str, ...]]
    """The symbols of the input tokens, by id. ``_`` never occurs in inputs."""
    outputs: ClassVar[tuple[str, ...]]
    """The symbols of the output classes, by id."""

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
    def output_length(self, length: int) -> int:
        """Tokens of the output for an input of that nominal length."""

    def draw(self, generator: np.random.Generator, batch: int, length: int) -> Tokens:
        """Random inputs: independent symbols, all equally likely, unless a task overrides this."""
        return generator.integers(0, len(self.inputs), (batch, length))

    @abstractmethod
    def solve(self, inputs: Tokens) -> Tokens:
        """The outputs, from the inputs only."""

    def counted(self, targets: Tokens) -> Bool[np.ndarray, "b m"]:
        """The mask of the sample."""
        return np.ones(targets.shape, dtype=bool)


class OneAnswer(Task):
    """A task whose output is one class."""

    def output_length(self, length: int) -> int:
        return 1


class UpToTerminator(Task):
    """A task whose output ends with a terminator. Zeros follow, which are trained on but not scored."""

    outputs = ("0", "1", "$")
    terminator: ClassVar[int] = 2

    def counted(self, targets: Tokens) -> Bool[np.ndarray, "b m"]:
        return np.cumsum(targets == self.terminator, axis=1) - (targets == self.terminator) == 0

    def terminated(self, values: Tokens, counts: Int[np.ndarray, " b"], length: int) -> Tokens:
        """In each row the first ``counts`` of ``values``, the terminator, and zeros up to ``length``."""
        places = np.arange(length)
        padded = np.zeros((len(values), length), dtype=np.int64)
        width = min(length, values.shape[1])
        padded[:, :width] = values[:, :width]
        padded[places >= counts[:, None]] = 0
        padded[places == counts[:, None]] = self.terminator
        return padded
