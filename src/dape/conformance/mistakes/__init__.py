"""Known mistakes, each as what it would give in place of the right logits. One function each, in the file of its
family.

A mistake that explains what an implementation gives, to rounding, is named in the verdict."""

from dape.conformance.mistakes import adaptive, biases, embeddings, gates, lags, neighbours, rotary
from dape.conformance.mistakes.base import Mistake, Setting

__all__ = ["MISTAKES", "Mistake", "Setting", "mistakes_of"]

FAMILIES = (lags, biases, gates, rotary, neighbours, adaptive, embeddings)
MISTAKES: list[Mistake] = [m for family in FAMILIES for m in family.MISTAKES]


def mistakes_of(name: str) -> list[Mistake]:
    return [each for each in MISTAKES if each.concerns(name)]
