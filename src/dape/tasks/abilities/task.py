"""A generated test as something to learn: the loss of a step, the model for it, and its answers."""

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dape.models.decoder import DecoderLM
from dape.models.readable import Readable
from dape.ops.linear import linear
from dape.tasks.abilities.base import Ability, Examples
from dape.tasks.abilities.catalogue import find
from dape.tasks.abilities.config import AbilityConfig
from dape.tasks.base import Batch, Loss

TRAIN, TEST = 0, 1
GROWING = 0.6
"""Share of the training steps in which sequences get longer, as in :mod:`dape.tasks.recall.sequences`."""


def training_batch(ability: Ability, config: AbilityConfig, *, seed: int, step: int) -> Examples:
    """Equally long sequences, as many tokens in every step; the longest are short at first."""
    generator = np.random.default_rng([TRAIN, seed, step])
    grown = min(1.0, step / (GROWING * config.steps))
    longest = int(ability.shortest + grown * (config.train_length - ability.shortest))
    length = int(generator.integers(ability.shortest, longest + 1))
    return ability.draw(generator, max(1, config.batch * config.train_length // length), length)


def test_examples(ability: Ability, config: AbilityConfig, length: int) -> Examples:
    """The same for every method and seed."""
    return ability.draw(np.random.default_rng([TEST, length]), config.samples, length)


class AbilityTask:
    """One of :mod:`dape.tasks.abilities.catalogue`."""

    tokens = None

    def __init__(self, config: AbilityConfig, test: str, *, seed: int) -> None:
        self.config, self.test, self.seed, self.ability = config, test, seed, find(test).load()

    @property
    def identity(self) -> dict[str, Any]:
        settings = {name: value for name, value in asdict(self.config).items() if name != "tests"}
        return {"name": self.test, **settings}

    def batch(self, model: nn.Module, step: int) -> Batch:
        drawn = training_batch(self.ability, self.config, seed=self.seed, step=step)

        def loss(part: int) -> Loss:
            assert isinstance(model, DecoderLM)
            logits = answer_logits(model, drawn, torch.Generator().manual_seed(step))
            answers = torch.from_numpy(drawn.answers).to(logits.device)
            mean = nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten())
            right = int((logits.argmax(-1) == answers).sum())
            return Loss(mean, answers.numel(), right, answers.numel())

        return Batch(loss=loss, count=drawn.scored.size)

    def validate(self, model: nn.Module) -> float | None:
        return None


def answer_logits(model: Readable, examples: Examples, generator: torch.Generator) -> Tensor:
    """[sequence, answer, vocabulary]: predictions made at the token before each answer."""
    tokens = torch.from_numpy(examples.tokens[:, :-1]).to(model.embedding.weight.device)
    encodings = model.drawn_encodings(tokens.shape[1], generator)
    last = tokens.shape[1] - (int(examples.scored.min()) - 1)
    hidden = model.hidden(tokens, encodings=encodings, last=last)
    places = torch.from_numpy(examples.scored - 1 - (tokens.shape[1] - last)).to(tokens.device)
    chosen = hidden.gather(1, places.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
    return linear(model.head, chosen).float()
