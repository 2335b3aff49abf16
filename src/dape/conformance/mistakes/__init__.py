"""Known mistakes: one function each, which computes the wrong logits, in the file of its family.

The verdict names a mistake if it gives the same numbers as the implementation, up to rounding."""

from dape.conformance.mistakes import adaptive, biases, embeddings, gates, lags, neighbours, rotary
from dape.conformance.mistakes.base import Mistake, Setting

__all__ = ["MISTAKES", "Mistake", "Setting", "mistakes_of"]

FAMILIES = (lags, biases, gates, rotary, neighbours, adaptive, embeddings)
MISTAKES: list[Mistake] = [m for family in FAMILIES for m in family.MISTAKES]


def mistakes_of(name: str) -> list[Mistake]:
    return [each for each in MISTAKES if each.concerns(name)]
