"""A generated test as something to learn: the loss of a step."""

from dataclasses import asdict
from typing import Any

import numpy as np
from torch import nn

from dape.models.decoder import DecoderLM
from dape.tasks.abilities.base import Ability, Examples
from dape.tasks.abilities.catalogue import find
from dape.tasks.abilities.config import AbilityConfig
from dape.tasks.answers import answer_loss
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
            return answer_loss(model, drawn, step)

        return Batch(loss=loss, count=drawn.scored.size)

    def validate(self, model: nn.Module) -> float | None:
        return None
