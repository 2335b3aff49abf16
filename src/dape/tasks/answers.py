"""The logits of answers in generated sequences, and their loss."""

import torch
from torch import Tensor, nn

from dape.models.readable import Readable
from dape.ops.linear import linear
from dape.tasks.base import Loss
from dape.tasks.examples import Examples


def answer_logits(model: Readable, examples: Examples, generator: torch.Generator) -> Tensor:
    """[sequence, answer, vocabulary]: predictions made at the token before each answer."""
    tokens = torch.from_numpy(examples.tokens[:, :-1]).to(model.embedding.weight.device)
    encodings = model.drawn_encodings(tokens.shape[1], generator)
    last = tokens.shape[1] - (int(examples.scored.min()) - 1)
    hidden = model.hidden(tokens, encodings=encodings, last=last)
    places = torch.from_numpy(examples.scored - 1 - (tokens.shape[1] - last)).to(tokens.device)
    chosen = hidden.gather(1, places.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
    return linear(model.head, chosen).float()


def answer_loss(model: Readable, examples: Examples, step: int) -> Loss:
    """``step`` is the seed of positions that are drawn."""
    logits = answer_logits(model, examples, torch.Generator().manual_seed(step))
    answers = torch.from_numpy(examples.answers).to(logits.device)
    mean = nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten())
    right = int((logits.argmax(-1) == answers).sum())
    return Loss(mean, answers.numel(), right, answers.numel())
