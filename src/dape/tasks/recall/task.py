"""The task of associative recall."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from torch import nn

from dape.models.readable import Readable
from dape.tasks.answers import answer_loss
from dape.tasks.base import Batch, Loss
from dape.tasks.recall.config import RecallConfig
from dape.tasks.recall.sequences import training_batch

PROTOCOL = "mqar"


class RecallTask:
    """Predict the values of keys (:mod:`dape.tasks.recall.sequences`)."""

    tokens = None

    def __init__(
        self, config: RecallConfig, *, seed: int, first: int = 0, reads: Callable[[Any], Readable] = lambda model: model
    ) -> None:
        """``first`` is the step of the first batch: sequences grow with the step. ``reads`` adapts other models to
        :class:`~dape.models.readable.Readable`."""
        self.config, self.seed, self.first, self.reads = config, seed, first, reads

    @property
    def identity(self) -> dict[str, Any]:
        return {"name": PROTOCOL, **asdict(self.config)}

    def batch(self, model: nn.Module, step: int) -> Batch:
        drawn = training_batch(self.config, seed=self.seed, step=self.first + step)

        def loss(part: int) -> Loss:
            return answer_loss(self.reads(model), drawn, step)

        return Batch(loss=loss, count=drawn.answers.size)

    def validate(self, model: nn.Module) -> float | None:
        return None
