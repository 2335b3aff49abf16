"""Accuracy on a generated test, at lengths beyond training."""

import numpy as np
import torch

from dape.evaluation.perplexity import batch_size
from dape.models.readable import Readable
from dape.tasks.abilities.base import Examples
from dape.tasks.abilities.task import answer_logits


def correct(model: Readable, examples: Examples) -> np.ndarray:
    """[sequence, answer]: whether the most likely token is the answer."""
    size = batch_size(model, examples.tokens.shape[1] - 1)
    parts = []
    with torch.inference_mode():
        for first in range(0, len(examples.tokens), size):
            part = Examples(examples.tokens[first : first + size], examples.scored[first : first + size])
            logits = answer_logits(model, part, torch.Generator().manual_seed(first))
            parts.append(logits.argmax(-1).cpu().numpy() == part.answers)
    return np.concatenate(parts)
