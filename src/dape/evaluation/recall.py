"""Accuracy of recall on longer contexts, and with other numbers of pairs, than in training."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from dape.evaluation.perplexity import Subject, batch_size
from dape.models.readable import Readable
from dape.results.records import Row
from dape.tasks.answers import answer_logits
from dape.tasks.examples import Examples
from dape.tasks.recall.config import RecallConfig, depth_places
from dape.tasks.recall.sequences import data_hash, evaluation_sequences, fits, tokens_name
from dape.tasks.recall.task import PROTOCOL
from dape.training.recall import RecallTrainer


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


def measure_at(model: Readable, config: RecallConfig, subject: Subject, length: int) -> list[Row]:
    """Accuracy at one length: overall, by number of pairs, and by depth."""
    common: dict[str, Any] = {
        **vars(subject),
        "metric": "accuracy",
        "protocol": PROTOCOL,
        "windows": config.samples,
        "length": length,
    }
    return [
        Row(**common | {"value": float(right.mean()), "scored_tokens": right.size, "extra": {**subject.extra, **place}})
        for right, place in _tests(model, config, length)
    ]


def _tests(model: Readable, config: RecallConfig, length: int) -> Iterator[tuple[np.ndarray, dict[str, float]]]:
    """Every test at one length: which answers were right, and its number of pairs or depth, if it has one."""
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


def correct(model: Readable, examples: Examples) -> np.ndarray:
    """[sequence, answer]: whether the most likely token is the answer."""
    size = batch_size(model, examples.tokens.shape[1] - 1)
    parts = []
    with torch.inference_mode():
        for first in range(0, len(examples.tokens), size):
            part = examples.part(first, size)
            logits = answer_logits(model, part, torch.Generator().manual_seed(first))
            parts.append(logits.argmax(-1).cpu().numpy() == part.answers)
    return np.concatenate(parts)
