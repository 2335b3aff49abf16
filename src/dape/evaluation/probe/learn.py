"""Train a small model on associative recall, then test it on longer contexts and other numbers of pairs.

As in training a language model, a step is a function of the weights and the step's number: a run that was stopped goes
on from its last checkpoint to the weights it would have had.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dape.evaluation.perplexity import Readable, Subject, batch_size
from dape.evaluation.probe.config import RecallConfig, depth_places
from dape.evaluation.probe.mqar import Sequences, Symbols, data_hash, evaluation_sequences, fits, training_batch
from dape.evaluation.records import Row
from dape.models.config import DecoderConfig
from dape.models.decoder import DecoderLM
from dape.training import checkpoint
from dape.training.checkpoint import CHECKPOINTS, Description
from dape.training.config import TrainConfig
from dape.training.optim import learning_rate, make_optimizer
from dape.training.run import Metrics

PROTOCOL = "mqar"
LOG_EVERY, SAVE_EVERY = 10, 200


def model_config(config: RecallConfig, method: str) -> DecoderConfig:
    return DecoderConfig(
        layers=config.layers,
        width=config.width,
        heads=config.heads,
        vocabulary=config.vocabulary,
        encoding=method,
        train_length=config.train_length,
    )


def new_model(config: RecallConfig, method: str, seed: int) -> DecoderLM:
    """Embeddings have variance 1. With those of the language models, a twelfth as large, rope and kerple did not get
    beyond guessing one of the values stated, rope not even of two pairs in 8 tokens (docs/lab-notes.md)."""
    torch.manual_seed(seed)
    model = DecoderLM(model_config(config, method))
    torch.nn.init.normal_(model.embedding.weight, generator=torch.Generator().manual_seed(seed))
    return model


def train_config(config: RecallConfig, seed: int) -> TrainConfig:
    return TrainConfig(steps=config.steps, batch=config.batch, lr=config.lr, warmup_share=0.05, seed=seed)


# Training ------------------------------------------------------------------------------------------------------------


class RecallTrainer:
    """One run, in its folder. Building it creates the model, or restores it from the last checkpoint."""

    def __init__(self, folder: Path, config: RecallConfig, *, method: str, seed: int, device: torch.device) -> None:
        self.folder, self.config, self.device = folder, config, device
        self.train = train_config(config, seed)
        self.model = new_model(config, method, seed).to(device)
        self.optimizer = make_optimizer(self.model, self.train)
        self.step = 0
        self._resume()
        self.metrics = Metrics(folder, after_step=self.step)

    def _resume(self) -> None:
        saved = checkpoint.resume(self.folder / CHECKPOINTS, self.model, self.optimizer, self._description())
        self.step = saved.step if saved else 0

    def _description(self) -> Description:
        data = {"name": PROTOCOL, **asdict(self.config)}
        return Description(step=self.step, model=self.model.config, train=self.train, data=data)

    def save(self) -> None:
        folder, symbols = self.folder / CHECKPOINTS, Symbols(self.config.keys)
        checkpoint.save(folder, self._description(), self.model, self.optimizer, symbols)
        checkpoint.prune(folder, 1)

    def run(self, stop: Callable[[], bool]) -> bool:
        """Train to the end, or until ``stop()``; either way the last step is saved. True if the end was reached."""
        while self.step < self.train.steps and not stop():
            line = self._take_step()
            if self.step % LOG_EVERY == 0 or self.step in (1, self.train.steps):
                self.metrics.add(line)
            if self.step % SAVE_EVERY == 0:
                self.save()
        self.save()
        return self.step == self.train.steps

    def _take_step(self) -> dict[str, Any]:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.train)
        batch = training_batch(self.config, seed=self.train.seed, step=self.step)
        generator = torch.Generator().manual_seed(self.step)
        answers = torch.from_numpy(batch.answers.copy()).to(self.device)
        logits = answer_logits(self.model, batch, generator)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten())
        if not math.isfinite(loss.item()):
            raise ValueError(
                f"step {self.step + 1}: the loss is {loss.item()}; try a lower --lr than {self.train.lr:g}"
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.train.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.model.project_()
        self.step += 1
        accuracy = (logits.argmax(-1) == answers).float().mean().item()
        return {"step": self.step, "loss": loss.item(), "accuracy": accuracy}


def answer_logits(model: Readable, sequences: Sequences, generator: torch.Generator) -> Tensor:
    """[sequence, question, vocabulary]: predictions made at the keys of the questions."""
    tokens = torch.from_numpy(sequences.tokens[:, :-1]).to(model.embedding.weight.device)
    encodings = model.drawn_encodings(tokens.shape[1], generator)
    hidden = model.hidden(tokens, encodings=encodings, last=2 * sequences.questions - 1)
    return model.head(hidden[:, ::2]).float()


# Testing -------------------------------------------------------------------------------------------------------------


def subject_of(trainer: RecallTrainer, *, run: str, extra: dict[str, Any]) -> Subject:
    config = trainer.config
    return Subject(
        run=run,
        method=trainer.model.config.encoding,
        seed=trainer.train.seed,
        train_length=config.train_length,
        step=trainer.step,
        data_hash=data_hash(config),
        tokenizer=Symbols(config.keys).name,
        extra=extra,
    )


def measure(
    model: Readable, config: RecallConfig, subject: Subject, *, watch: Callable[[int], None] = lambda length: None
) -> Iterator[Row]:
    """Accuracy at every length: overall, by depth, and by number of pairs; ``watch(length)`` before each."""
    common: dict[str, Any] = {
        **vars(subject),
        "metric": "accuracy",
        "protocol": PROTOCOL,
        "windows": config.samples,
    }
    for length in sorted(config.lengths):
        watch(length)
        for right, place in _tests(model, config, length):
            here = {"length": length, "value": float(right.mean()), "scored_tokens": right.size}
            yield Row(**{**common, **here, "extra": {**subject.extra, **place}})


def _tests(model: Readable, config: RecallConfig, length: int) -> Iterator[tuple[np.ndarray, dict[str, float]]]:
    """Which answers were right, and where that was measured: nowhere in particular, at a depth, with so many pairs."""
    for pairs in sorted({config.pairs, *config.test_pairs}):
        if fits(length, pairs):
            right = correct(model, evaluation_sequences(config, length=length, pairs=pairs))
            if pairs == config.pairs:
                yield right, {}
            if pairs in config.test_pairs:
                yield right, {"pairs": pairs}
    sequences = evaluation_sequences(config, length=length, pairs=config.pairs, depths=config.depths)
    right = correct(model, sequences)
    places = depth_places(config.depths, length + 1 - 2 * sequences.questions)
    for depth, place in zip(sorted(config.depths), places, strict=True):
        yield right[sequences.places == place], {"depth": depth}


def correct(model: Readable, sequences: Sequences) -> np.ndarray:
    """[sequence, question]: whether the most likely token is the answer."""
    length = sequences.tokens.shape[1] - 1
    size = batch_size(model, length)
    parts = []
    with torch.inference_mode():
        for first in range(0, len(sequences.tokens), size):
            part = Sequences(sequences.tokens[first : first + size], sequences.places[first : first + size])
            logits = answer_logits(model, part, torch.Generator().manual_seed(first))
            parts.append(logits.argmax(-1).cpu().numpy() == part.answers)
    return np.concatenate(parts)
