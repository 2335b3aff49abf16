"""Accuracy on a task of the Chomsky-hierarchy benchmark. All models get the same test examples of a length."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dape.models.encoder import Encoder
from dape.positional.base import PositionalEncoding
from dape.results.records import Row
from dape.tasks.chomsky.base import Sample, Task
from dape.tasks.chomsky.config import CheConfig, Subject
from dape.tasks.chomsky.learn import PROTOCOL, as_tokens, count_correct, mean_loss, seeded
from dape.tasks.chomsky.model import total_length

TEST = 1
"""First number of the seeds of tests; those of training begin with 0."""
GROUP = 64
"""Test examples that share one draw of randomised positions."""
TOKENS_AT_ONCE = 1 << 14
"""Keeps the largest arrays of the paper's model below 100 MB each."""


@dataclass(frozen=True)
class Measured:
    length: int
    accuracy: float
    counted: int
    loss: float


@torch.inference_mode()
def measure_at(model: Encoder, config: CheConfig, task: Task, length: int) -> Measured:
    """Accuracy over all test examples of a length. DeepMind's program takes the mean of the accuracies of groups, which
    is another number if not all outputs count."""
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
    """Logits of a group, computed in parts that fit into memory."""
    tokens, outputs = as_tokens(sample, config, task, model.embedding.weight.device)
    size = max(1, TOKENS_AT_ONCE // tokens.shape[1])
    parts = [model(part, outputs, encodings=encodings, noise=noise) for part in tokens.split(size)]
    return torch.cat(parts)


def as_rows(measured: Measured, config: CheConfig, subject: Subject, *, step: int, extra: dict[str, Any]) -> list[Row]:
    """A row of accuracy; in distribution also one of the loss, which ranks learning rates of equal accuracy."""
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
    """Hash of what defines the test examples."""
    facts = [PROTOCOL, 1, task, config.samples, config.computation, config.compat]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
