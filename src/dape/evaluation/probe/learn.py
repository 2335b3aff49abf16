"""Train a small model on associative recall, then test it on longer contexts and other numbers of pairs.

As in training a language model, a step is a function of the weights and the step's number: a run that was stopped goes
on from its last checkpoint to the weights it would have had.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dape.evaluation.perplexity import Readable, Subject, batch_size
from dape.evaluation.probe.config import RecallConfig, depth_places
from dape.evaluation.probe.mqar import Sequences, data_hash, evaluation_sequences, fits, tokens_name, training_batch
from dape.evaluation.records import Row
from dape.models.config import DecoderConfig
from dape.models.decoder import DecoderLM
from dape.tasks.base import Batch, Loss
from dape.training.config import TrainConfig
from dape.training.trainer import Trainer

PROTOCOL = "mqar"


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
    return TrainConfig(
        steps=config.steps, batch=config.batch, lr=config.lr, warmup_share=0.05, seed=seed, save_every=200, keep=1
    )


# Training ------------------------------------------------------------------------------------------------------------


class RecallTask:
    """Values that belong to keys, stated among noise (:mod:`dape.evaluation.probe.mqar`)."""

    tokens = None

    def __init__(
        self, config: RecallConfig, *, seed: int, first: int = 0, reads: Callable[[Any], Readable] = lambda model: model
    ) -> None:
        """``first``: the step to begin with, as sequences grow while a model learns. ``reads``: the model as this
        module knows it."""
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


class RecallTrainer(Trainer):
    """One run, in its folder. Building it creates the model, or restores it from the last checkpoint."""

    model: DecoderLM
    task: RecallTask

    def __init__(self, folder: Path, config: RecallConfig, *, method: str, seed: int, device: torch.device) -> None:
        self.config = config
        model = new_model(config, method, seed).to(device)
        task = RecallTask(config, seed=seed)
        super().__init__(model, task, train_config(config, seed), folder, described=model.config)


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
        tokenizer=tokens_name(config),
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
