"""What an encoding does to attention before anything is trained, as arrays for pictures."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from dape.ops.attention import intermediates
from dape.ops.attention.reference import scaled_scores
from dape.positional.base import PositionalEncoding
from dape.positional.randomized import Randomized

TOKENS = 16
"""Sequences, each of one token repeated, over which is averaged."""
POOL_PER_LENGTH = 4
"""Positions to draw from, where the encoding has no pool of its own."""
SCALE = 1.0
"""Standard deviation of the numbers of a token."""


@dataclass(frozen=True)
class Effect:
    """Logits less the scores without any encoding, where all tokens of a sequence are the same one: what is left is
    position alone. Of an additive encoding it is B; of DAPE B + f(A, B); of a rotation how similar a token stays to
    itself from afar."""

    name: str
    causal: Float[np.ndarray, "h q k"]
    """What lies in the future is NaN."""
    draws: tuple[Float[np.ndarray, "h q k"], ...]
    """The same with positions drawn at random, a few times; none where this cannot be."""

    @property
    def by_distance(self) -> Float[np.ndarray, "h t"]:
        """Of the last query: distance 0 first."""
        return self.causal[:, -1, ::-1]


def effect(name: str, pe: PositionalEncoding, *, length: int, draws: int, generator: torch.Generator) -> Effect:
    """``draws``: how often positions are drawn at random."""
    fixed = pe.draw(length, generator) if isinstance(pe, Randomized) else pe
    randomized = pe if isinstance(pe, Randomized) else Randomized(pe, pool=POOL_PER_LENGTH * length)
    tokens = SCALE * torch.randn(TOKENS, 1, _width(pe), generator=generator)
    through = (randomized.draw(length, generator) for _ in range(draws))
    return Effect(name, _of(fixed, tokens, length), tuple(_of(each, tokens, length) for each in _possible(through)))


def _possible(through: Iterator[Randomized]) -> Iterator[Randomized]:
    """A table of fixed size knows no larger positions."""
    try:
        yield from through
    except ValueError:
        return


def _width(pe: PositionalEncoding) -> int:
    return pe.dims.num_heads * pe.dims.head_dim


@torch.no_grad()
def _of(pe: PositionalEncoding, tokens: torch.Tensor, length: int) -> np.ndarray:
    heads, places = pe.dims.num_heads, torch.arange(length)

    def split(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    alike = tokens.expand(-1, length, -1)
    embedded = pe.embed(alike, places)
    found = intermediates(split(embedded), split(embedded), pe, features=pe.features(embedded))
    change = (found.logits - scaled_scores(split(alike), split(alike))).mean(dim=0).double()
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    return change.masked_fill(future, torch.nan).numpy()
