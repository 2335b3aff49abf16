"""The interface of tasks: batches that are a function of the step, and losses that can be summed over parts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float
from torch import Tensor, nn


@dataclass(frozen=True)
class Loss:
    """The loss of one part of a batch. Means are weighted by counts, so that a batch may be divided anyhow."""

    mean: Float[Tensor, ""]
    """Nats per target."""
    count: int
    """Targets of this part."""
    right: int = 0
    """Number of correct ``answers``. Both are 0 for tasks without accuracy."""
    answers: int = 0


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The examples of one step."""

    loss: Callable[[int], Loss]
    """The loss of the part with this number."""
    count: int
    """Targets of all parts, in all processes."""
    parts: int = 1
    side_by_side: bool = False
    """Whether parts are small, so that threads may compute them at once. Otherwise parts save memory."""
    words: Callable[[], str] = lambda: ""
    """Describes the batch for the error message if its loss is not finite."""


class Shares(Protocol):
    """Processes that divide a batch among themselves."""

    @property
    def world(self) -> int: ...

    def share(self, rows: Tensor) -> Tensor:
        """The share of this process."""
        ...

    def sums(self, *values: float) -> list[float]:
        """The sum over all processes."""
        ...


class _One:
    world = 1

    def share(self, rows: Tensor) -> Tensor:
        return rows

    def sums(self, *values: float) -> list[float]:
        return list(values)


ONE_PROCESS = _One()


class Task(Protocol):
    """A task. A batch is a function of the model and the step only, so that stopped training continues unchanged."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """The settings that decide the batches, such as a hash of the text. Checkpoints hold it, and resuming compares
        it."""
        ...

    @property
    def tokens(self) -> int | None:
        """Tokens of a step, if their number is always the same."""
        ...

    def batch(self, model: nn.Module, step: int) -> Batch: ...

    def validate(self, model: nn.Module) -> float | None:
        """The mean loss in nats on held-out examples, or None if there are none."""
        ...


def step_seed(*numbers: int) -> int:
    """A seed that depends on all the numbers, such as a run's seed and a step."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))
