"""Train one model on one task, then test it at every length.

A step is a function of the weights and the step's number, and the test examples of a length are a function of the
length: a run that was stopped goes on to the numbers it would have had.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dape.che.config import CheConfig, Subject
from dape.che.encoder import Encoder, encoder_for, model_input, total_length
from dape.che.tasks.base import Sample, Task
from dape.che.tasks.catalogue import load
from dape.evaluation.records import Row
from dape.positional.base import PositionalEncoding
from dape.tasks.base import Batch, Loss
from dape.training.config import TrainConfig
from dape.training.side_by_side import parts_of
from dape.training.trainer import Trainer

PROTOCOL = "che"
TRAIN, TEST = 0, 1
GROUP = 64
"""Test examples that share one draw of randomised positions."""
TOKENS_AT_ONCE = 1 << 14
"""In tests: keeps the largest arrays of the paper's model below 100 MB each."""

SAVE_SECONDS = 120.0


def train_config(config: CheConfig, subject: Subject) -> TrainConfig:
    """Plain Adam at a constant rate."""
    return TrainConfig(
        steps=config.steps,
        batch=config.batch,
        lr=subject.lr,
        final_lr_share=1.0,
        warmup_share=0.0,
        beta2=0.999,
        weight_decay=0.0,
        seed=subject.seed,
        log_every=50,
        save_every=0,
        save_seconds=SAVE_SECONDS,
        keep=1,
    )


def seeded(*words: int, device: torch.device | None = None) -> torch.Generator:
    """A generator for exactly these numbers."""
    seed = int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> 1)
    return torch.Generator(device or torch.device("cpu")).manual_seed(seed)


def training_batch(config: CheConfig, task: Task, *, seed: int, step: int) -> Sample:
    """All examples of a step are equally long, every length equally likely."""
    generator = np.random.default_rng([TRAIN, seed, step])
    length = int(generator.integers(1, config.train_length + 1))
    return task.sample(generator, config.batch, length)


# Loss and accuracy ---------------------------------------------------------------------------------------------------


def mean_loss(logits: Float[Tensor, "b o c"], targets: Int[Tensor, "b o"]) -> Float[Tensor, ""]:
    """Over all outputs, also those after the terminator, which accuracy leaves out."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def count_correct(logits: Float[Tensor, "b o c"], sample: Sample) -> tuple[int, int]:
    """How many outputs are right, of how many that count."""
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
        """In parts, which the CPU takes side by side. Dropout is drawn for each of them."""
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


class ChomskyTrainer(Trainer):
    """One run, in its folder. Building it creates the model, or restores it from the last checkpoint."""

    model: Encoder
    task: ChomskyTask

    def __init__(self, folder: Path, config: CheConfig, subject: Subject, device: torch.device) -> None:
        task = ChomskyTask(config, subject)
        torch.manual_seed(subject.seed)
        model = encoder_for(config, task.examples, subject.method).to(device)
        super().__init__(model, task, train_config(config, subject), folder, described=model.shape)


def as_tokens(sample: Sample, config: CheConfig, task: Task, device: torch.device) -> tuple[Tensor, int]:
    """What the model reads, and how many outputs it is to give."""
    outputs = sample.targets.shape[1]
    return torch.from_numpy(model_input(sample.inputs, outputs, task, config.computation)).to(device), outputs


# Testing -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    length: int
    accuracy: float
    counted: int
    loss: float


def measure(
    model: Encoder, config: CheConfig, task: Task, lengths: tuple[int, ...], *, watch: Callable[[int], None]
) -> Iterator[Measured]:
    """One length after the other; ``watch(length)`` is called before each."""
    for length in lengths:
        watch(length)
        yield measure_at(model, config, task, length)


@torch.inference_mode()
def measure_at(model: Encoder, config: CheConfig, task: Task, length: int) -> Measured:
    """Accuracy over all test examples of a length. DeepMind's program takes the mean over groups instead, which differs
    where not all outputs count."""
    device = model.embedding.weight.device
    right, counted, losses, shares = 0, 0, [], []
    for group, first in enumerate(range(0, config.samples, GROUP)):
        size = min(GROUP, config.samples - first)
        sample = task.sample(np.random.default_rng([TEST, length, group]), size, length)
        positions = seeded(TEST, length, group)
        noise = seeded(TEST, length, group, 1, device=device) if config.compat == "deepmind" else None
        encodings = model.drawn_encodings(total_length(config, task, length), positions)
        logits = predict(model, sample, config, task, encodings, noise)
        found = count_correct(logits, sample)
        right, counted = right + found[0], counted + found[1]
        shares.append(found[0] / found[1])
        losses.append(mean_loss(logits, torch.from_numpy(sample.targets).to(device)).item() * size)
    accuracy = float(np.mean(shares)) if config.compat == "deepmind" else right / counted
    return Measured(length, accuracy, counted, sum(losses) / config.samples)


def predict(
    model: Encoder,
    sample: Sample,
    config: CheConfig,
    task: Task,
    encodings: list[PositionalEncoding],
    noise: torch.Generator | None,
) -> Float[Tensor, "b o c"]:
    """Logits of a group, computed in parts that fit."""
    tokens, outputs = as_tokens(sample, config, task, model.embedding.weight.device)
    size = max(1, TOKENS_AT_ONCE // tokens.shape[1])
    parts = [model(part, outputs, encodings=encodings, noise=noise) for part in tokens.split(size)]
    return torch.cat(parts)


def as_rows(measured: Measured, config: CheConfig, subject: Subject, *, step: int, extra: dict[str, Any]) -> list[Row]:
    """Accuracy, and in distribution also the loss: it tells learning rates apart that are all right."""
    common: dict[str, Any] = {
        "run": subject.name,
        "method": subject.method,
        "seed": subject.seed,
        "train_length": config.train_length,
        "length": measured.length,
        "scored_tokens": measured.counted,
        "protocol": PROTOCOL,
        "data_hash": data_hash(config, subject.task),
        "windows": config.samples,
        "step": step,
    }
    about = {"task": subject.task, "lr": subject.lr, "scale": config.scale, "width": config.width}
    about |= {"layers": config.layers, "heads": config.heads, "batch": config.batch}
    about |= {"compat": config.compat} if config.compat else {}
    extra = {**about, **extra}
    rows = [Row(metric="accuracy", value=measured.accuracy, extra=extra, **common)]
    if measured.length <= config.train_length:
        rows.append(Row(metric="nll", value=measured.loss, extra=extra, **common))
    return rows


def data_hash(config: CheConfig, task: str) -> str:
    """Of what defines the test examples."""
    facts = [PROTOCOL, 1, task, config.samples, config.computation, config.compat]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
