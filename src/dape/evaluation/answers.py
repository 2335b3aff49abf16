"""Measure how well a model answers questions in text: first per sample, then as means in rows."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dape.evaluation.perplexity import Subject
from dape.evaluation.questions import Sample
from dape.models.decoder import DecoderLM
from dape.results.records import Row

Predict = Callable[[Tensor, int, int], Tensor]
"""From tokens [b, length], a count n and a seed for randomised positions to the logits after the last n tokens."""


def predictor(model: DecoderLM) -> Predict:
    """The model as :data:`Predict`."""
    device = model.embedding.weight.device

    def predict(tokens: Tensor, last: int, seed: int) -> Tensor:
        with torch.inference_mode():
            encodings = model.drawn_encodings(tokens.shape[1], torch.Generator().manual_seed(seed))
            return model.head(model.hidden(tokens.to(device), encodings=encodings, last=last)).float().cpu()

    return predict


@dataclass(frozen=True)
class Scores:
    """One number per sample."""

    tokens: np.ndarray
    """Tokens of the answer."""
    right: np.ndarray
    """How many of them are the most likely token, given those before."""
    first: np.ndarray
    """Whether the first token of the answer is."""
    gain: np.ndarray
    """Log-probability of the answer minus that in the twin, whose context states another answer."""

    @property
    def exact(self) -> np.ndarray:
        return self.right == self.tokens


def score(predict: Predict, samples: Sequence[Sample], *, batch: int) -> Scores:
    """Score all samples, ``batch`` at a time."""
    parts = [_score(predict, samples[begin : begin + batch], begin) for begin in range(0, len(samples), batch)]
    columns = zip(*parts, strict=True)
    return Scores(*(np.concatenate(column) for column in columns))


def _score(predict: Predict, samples: Sequence[Sample], seed: int) -> tuple[np.ndarray, ...]:
    tokens = np.array([sample.answer for sample in samples])
    longest = int(tokens.max())
    # Answers are at the end: a shorter one has the last columns.
    answer = np.arange(longest) >= longest - tokens[:, None]
    nats, right = _read(predict, np.stack([sample.tokens for sample in samples]), longest, seed)
    nats_in_twin, _ = _read(predict, np.stack([sample.twin for sample in samples]), longest, seed)
    gain = ((nats_in_twin - nats) * answer).sum(axis=1)
    first = right[np.arange(len(tokens)), longest - tokens]
    return tokens, (right & answer).sum(axis=1), first, gain


def _read(predict: Predict, windows: np.ndarray, last: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Nats of the ``last`` tokens of every window, and whether each was the most likely."""
    tokens = torch.from_numpy(windows)
    logits, targets = predict(tokens[:, :-1], last, seed), tokens[:, -last:]
    nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), targets.flatten(), reduction="none")
    return nats.view_as(targets).numpy(), (logits.argmax(-1) == targets).numpy()


def as_rows(
    scores: Scores, subject: Subject, *, task: str, length: int, depth: float, extra: dict[str, Any]
) -> list[Row]:
    """Four rows: the shares of whole answers, of their tokens and of their first tokens that are right; mean gain."""
    samples, tokens = len(scores.tokens), int(scores.tokens.sum())
    spread = {"standard_error": float(scores.gain.std(ddof=1)) / math.sqrt(samples)} if samples > 1 else {}
    values = {
        "exact": (float(scores.exact.mean()), samples, {}),
        "accuracy": (int(scores.right.sum()) / tokens, tokens, {}),
        "first_token": (float(scores.first.mean()), samples, {}),
        "gain_nats": (float(scores.gain.mean()), tokens, spread),
    }
    common = {**vars(subject), "protocol": task, "length": length, "windows": samples}
    extra = {**subject.extra, **extra, "depth": depth}
    return [
        Row(metric=metric, value=value, scored_tokens=scored, **{**common, "extra": {**extra, **more}})
        for metric, (value, scored, more) in values.items()
    ]
