"""Train one model on one task, then test it at every length.

A step is a function of the weights and the step's number, and the test examples of a length are a function of the
length: a run that was stopped goes on to the numbers it would have had.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dape.che.config import CheConfig, Subject
from dape.che.encoder import Encoder, encoder_for, model_input, total_length
from dape.che.parts import SideBySide, parts_of
from dape.che.tasks.base import Sample, Task
from dape.che.tasks.catalogue import load
from dape.evaluation.records import Row
from dape.files import write_text
from dape.positional.base import PositionalEncoding
from dape.training import checkpoint
from dape.training.checkpoint import CHECKPOINTS, Description
from dape.training.config import TrainConfig
from dape.training.optim import make_optimizer
from dape.training.run import Metrics

PROTOCOL = "che"
TRAIN, TEST = 0, 1
GROUP = 64
"""Test examples that share one draw of randomised positions."""
TOKENS_AT_ONCE = 1 << 14
"""In tests: keeps the largest arrays of the paper's model below 100 MB each."""
LOG_EVERY, SAVE_SECONDS = 50, 120.0


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


class Trainer:
    """One run, in its folder. Building it creates the model, or restores it from the last checkpoint."""

    def __init__(self, folder: Path, config: CheConfig, subject: Subject, device: torch.device) -> None:
        self.folder, self.config, self.subject, self.device = folder, config, subject, device
        self.task = load(subject.task, config.compat)
        self.train = train_config(config, subject)
        torch.manual_seed(subject.seed)
        self.model = encoder_for(config, self.task, subject.method).to(device)
        self.optimizer = make_optimizer(self.model, self.train)
        self.side_by_side = SideBySide()
        self.step = 0
        self._resume()
        folder.mkdir(parents=True, exist_ok=True)
        self.metrics = Metrics(folder, after_step=self.step)

    def _resume(self) -> None:
        saved = checkpoint.resume(self.folder / CHECKPOINTS, self.model, self.optimizer, self._description())
        self.step = saved.step if saved else 0

    def _description(self) -> Description:
        data = {"name": PROTOCOL, "task": self.subject.task, **asdict(self.config)}
        return Description(step=self.step, model=self.model.shape, train=self.train, data=data)

    def save(self) -> None:
        folder = self.folder / CHECKPOINTS
        checkpoint.save(folder, self._description(), self.model, self.optimizer, Symbols(self.subject.task, self.task))
        checkpoint.prune(folder, 1)

    def run(self, stop: Callable[[], bool]) -> bool:
        """Train to the end, or until ``stop()``; either way the last step is saved. True if the end was reached."""
        saved = time.monotonic()
        while self.step < self.train.steps and not stop():
            line = self.take_step()
            if self.step % LOG_EVERY == 0 or self.step in (1, self.train.steps):
                self.metrics.add(line)
            if time.monotonic() - saved > SAVE_SECONDS:
                self.save()
                saved = time.monotonic()
        self.save()
        return self.step == self.train.steps

    def take_step(self) -> dict[str, Any]:
        """What there is to log, on the steps that are logged."""
        sample = training_batch(self.config, self.task, seed=self.subject.seed, step=self.step)
        loss, logits = self.update(sample)
        self.step += 1
        if self.step % LOG_EVERY and self.step not in (1, self.train.steps):
            return {}
        right, counted = count_correct(logits, sample)
        return {"step": self.step, "loss": loss, "accuracy": right / counted}

    def update(self, sample: Sample) -> tuple[float, Tensor]:
        """Forward, backward, Adam; the loss and the logits before."""
        loss, logits, gradients = self.gradients(sample)
        if not math.isfinite(loss):
            raise ValueError(f"step {self.step + 1}: the loss is {loss}; try a lower --lr than {self.train.lr:g}")
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
        nn.utils.clip_grad_norm_(self.model.parameters(), self.train.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.model.project_()
        return loss, logits

    def gradients(self, sample: Sample) -> tuple[float, Tensor, dict[nn.Parameter, Tensor]]:
        """Loss, logits and gradients of a step, computed in parts, which the CPU takes side by side."""
        numbers = (TRAIN, self.subject.seed, self.step)
        tokens, outputs = as_tokens(sample, self.config, self.task, self.device)
        targets = torch.from_numpy(sample.targets).to(self.device)
        encodings = self.model.drawn_encodings(tokens.shape[1], seeded(*numbers, 1))
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        batch = len(tokens)
        parts = [slice(0, batch)]
        if self.device.type == "cpu":
            parts = parts_of(batch, tokens.shape[1] * self.config.width)

        def work(index: int) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...]]:
            part, noise = parts[index], seeded(*numbers, 2, index, device=self.device)
            logits = self.model(tokens[part], outputs, encodings=encodings, noise=noise)
            loss = mean_loss(logits, targets[part]) * (len(logits) / batch)
            return loss.detach(), logits.detach(), torch.autograd.grad(loss, parameters, allow_unused=True)

        losses, logits, found = zip(*self.side_by_side(work, len(parts)), strict=True)
        sums = {p: _sum(each) for p, each in zip(parameters, zip(*found, strict=True), strict=True)}
        return torch.stack(losses).sum().item(), torch.cat(logits), {p: g for p, g in sums.items() if g is not None}


def _sum(gradients: Sequence[Tensor | None]) -> Tensor | None:
    """In order, in place; None where the parameter had no part in the result."""
    first, *others = gradients
    for other in others:
        if first is not None and other is not None:
            first += other
    return first


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


class Symbols:
    """The tokens of a task in writing, as far as a checkpoint needs them."""

    def __init__(self, name: str, task: Task) -> None:
        self.name, self.inputs, self.outputs = f"{PROTOCOL}:{name}", task.inputs, task.outputs
        self.vocabulary, self.eod = len(task.inputs) + 1, len(task.inputs)
        self.fingerprint = hashlib.sha256(self._text().encode()).hexdigest()

    def _text(self) -> str:
        return json.dumps({"type": self.name, "inputs": self.inputs, "outputs": self.outputs}) + "\n"

    def encode(self, text: str) -> np.ndarray:
        return np.array([self.inputs.index(word) for word in text.split()], dtype=np.int64)

    def encode_many(self, texts: Any) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Any) -> str:
        return " ".join("_" if i >= len(self.inputs) else self.inputs[i] for i in ids)

    def save(self, folder: Path) -> None:
        write_text(Path(folder) / "tokenizer.json", self._text())
