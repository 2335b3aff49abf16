"""Training on a task of the benchmark: the examples of a step, loss and accuracy."""

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dape.tasks.base import Batch, Loss, step_seed
from dape.tasks.chomsky.base import Sample, Task
from dape.tasks.chomsky.catalogue import load
from dape.tasks.chomsky.config import CheConfig, Subject
from dape.tasks.chomsky.model import model_input

PROTOCOL = "che"
TRAIN = 0
"""The first number of the seeds for training; those for tests begin with 1."""
SMALL, LARGE, FITS = 32, 64, 1 << 20
"""A part of a batch has LARGE examples if a layer's input then has at most FITS numbers, which fit into the cache, and
SMALL examples otherwise. Parts do not depend on the number of threads, and therefore dropout and results do not either
(with at most one thread for each part)."""


def seeded(*numbers: int, device: torch.device | None = None) -> torch.Generator:
    """A generator whose seed depends on all the numbers."""
    return torch.Generator(device or torch.device("cpu")).manual_seed(step_seed(*numbers))


def training_batch(config: CheConfig, task: Task, *, seed: int, step: int) -> Sample:
    """The examples of a step, all of one length. All lengths are equally likely."""
    generator = np.random.default_rng([TRAIN, seed, step])
    length = int(generator.integers(1, config.train_length + 1))
    return task.sample(generator, config.batch, length)


# Loss and accuracy ---------------------------------------------------------------------------------------------------


def mean_loss(logits: Float[Tensor, "b o c"], targets: Int[Tensor, "b o"]) -> Float[Tensor, ""]:
    """The loss over all outputs. Unlike the accuracy, it includes those after the terminator."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def count_correct(logits: Float[Tensor, "b o c"], sample: Sample) -> tuple[int, int]:
    """The number of correct outputs, and of all outputs that count."""
    right = logits.argmax(-1).cpu().numpy() == sample.targets
    return int((right & sample.mask).sum()), int(sample.mask.sum())


# Training ------------------------------------------------------------------------------------------------------------


class ChomskyTask:
    """Examples of one of the benchmark's tasks."""

    tokens = None

    def __init__(self, config: CheConfig, subject: Subject) -> None:
        self.config, self.subject = config, subject
        self.examples = load(subject.task, config.compat)

    @property
    def identity(self) -> dict[str, Any]:
        return {"name": PROTOCOL, "task": self.subject.task, **asdict(self.config)}

    def batch(self, model: nn.Module, step: int) -> Batch:
        sample = training_batch(self.config, self.examples, seed=self.subject.seed, step=step)
        return self.batch_of(model, sample, step)

    def batch_of(self, model: Any, sample: Sample, step: int) -> Batch:
        """The batch, on a CPU in parts for several threads. Each part draws its own dropout."""
        device, numbers = model.embedding.weight.device, (TRAIN, self.subject.seed, step)
        tokens, outputs = as_tokens(sample, self.config, self.examples, device)
        targets = torch.from_numpy(sample.targets).to(device)
        encodings = model.drawn_encodings(tokens.shape[1], seeded(*numbers, 1))
        parts = [slice(0, len(tokens))]
        if device.type == "cpu":
            parts = parts_of(len(tokens), tokens.shape[1] * self.config.width)

        def loss(index: int) -> Loss:
            part, noise = parts[index], seeded(*numbers, 2, index, device=device)
            logits = model(tokens[part], outputs, encodings=encodings, noise=noise)
            counted = Sample(sample.inputs[part], sample.targets[part], sample.mask[part])
            return Loss(mean_loss(logits, targets[part]), targets[part].numel(), *count_correct(logits, counted))

        return Batch(loss=loss, count=targets.numel(), parts=len(parts), side_by_side=True)

    def validate(self, model: nn.Module) -> float | None:
        return None


def as_tokens(sample: Sample, config: CheConfig, task: Task, device: torch.device) -> tuple[Tensor, int]:
    """The tokens that the model reads, and the number of outputs."""
    outputs = sample.targets.shape[1]
    return torch.from_numpy(model_input(sample.inputs, outputs, task, config.computation)).to(device), outputs


def parts_of(batch: int, numbers: int) -> list[slice]:
    """The parts of a batch. ``numbers`` is the size of a layer's input for one example."""
    size = LARGE if LARGE * numbers <= FITS else SMALL
    return [slice(first, min(first + size, batch)) for first in range(0, batch, size)]
