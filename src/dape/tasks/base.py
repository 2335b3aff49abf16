"""A task as the training loop sees it: batches that are a function of the step, losses that add up over parts."""

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
    """How many of ``answers`` are right; both are 0 where a task does not tell."""
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
    """What to say about the batch when its loss is not finite."""


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
    """What is learned. A batch is a function of the model and the step's number alone: training that was stopped goes
    on to the weights it would have had."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What decides the batches, such as the hash of a text: saved, and compared when training goes on."""
        ...

    @property
    def tokens(self) -> int | None:
        """Tokens of a step, if their number is always the same."""
        ...

    def batch(self, model: nn.Module, step: int) -> Batch: ...

    def validate(self, model: nn.Module) -> float | None:
        """Mean nats on examples that are held out; None if there are none."""
        ...


def step_seed(seed: int, step: int) -> int:
    """A seed of its own for every step of every run."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> np.uint64(1))
