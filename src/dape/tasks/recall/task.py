"""The task of associative recall, and its model."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from dape.models.readable import Readable
from dape.ops.linear import linear
from dape.tasks.base import Batch, Loss
from dape.tasks.recall.config import RecallConfig
from dape.tasks.recall.sequences import Sequences, training_batch

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
            logits = answer_logits(self.reads(model), drawn, torch.Generator().manual_seed(step))
            answers = torch.from_numpy(drawn.answers.copy()).to(logits.device)
            mean = nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten())
            right = int((logits.argmax(-1) == answers).sum())
            return Loss(mean, answers.numel(), right, answers.numel())

        return Batch(loss=loss, count=drawn.answers.size)

    def validate(self, model: nn.Module) -> float | None:
        return None


def answer_logits(model: Readable, sequences: Sequences, generator: torch.Generator) -> Tensor:
    """[sequence, question, vocabulary]: the logits at the keys of the questions."""
    tokens = torch.from_numpy(sequences.tokens[:, :-1]).to(model.embedding.weight.device)
    encodings = model.drawn_encodings(tokens.shape[1], generator)
    hidden = model.hidden(tokens, encodings=encodings, last=2 * sequences.questions - 1)
    return linear(model.head, hidden[:, ::2]).float()
