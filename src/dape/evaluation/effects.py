"""The effect of an encoding on attention before training, as arrays for pictures."""

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
"""Number of sequences to average over; each repeats one token."""
POOL_PER_LENGTH = 4
"""Positions to draw from, relative to the length, if the encoding has no pool of its own."""
SCALE = 1.0
"""Standard deviation of a token's channels."""


@dataclass(frozen=True)
class Effect:
    """Logits minus the scores without any encoding, for sequences that repeat one token, so that only position matters.
    For an additive encoding this is B, for DAPE B + f(A, B), for a rotation the change in a token's similarity to
    itself with distance."""

    name: str
    causal: Float[np.ndarray, "h q k"]
    """NaN for keys in the future."""
    draws: tuple[Float[np.ndarray, "h q k"], ...]
    """The same for randomly drawn positions, once per draw; empty if the encoding does not allow them."""

    @property
    def by_distance(self) -> Float[np.ndarray, "h t"]:
        """The effect on the last query, by distance from 0 on."""
        return self.causal[:, -1, ::-1]


def effect(name: str, pe: PositionalEncoding, *, length: int, draws: int, generator: torch.Generator) -> Effect:
    """The effect in order, and for ``draws`` draws of random positions."""
    fixed = pe.draw(length, generator) if isinstance(pe, Randomized) else pe
    randomized = pe if isinstance(pe, Randomized) else Randomized(pe, pool=POOL_PER_LENGTH * length)
    tokens = SCALE * torch.randn(TOKENS, 1, pe.dims.num_heads * pe.dims.head_dim, generator=generator)
    through = (randomized.draw(length, generator) for _ in range(draws))
    return Effect(name, _of(fixed, tokens, length), tuple(_of(each, tokens, length) for each in _possible(through)))


def _possible(through: Iterator[Randomized]) -> Iterator[Randomized]:
    """The draws up to the first that the encoding refuses, as a table of fixed size does with larger positions."""
    try:
        yield from through
    except ValueError:
        return


@torch.no_grad()
def _of(pe: PositionalEncoding, tokens: torch.Tensor, length: int) -> np.ndarray:
    """Mean change of the logits over all tokens; NaN for keys in the future."""

    def split(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (pe.dims.num_heads, -1)).transpose(1, 2)

    repeated = tokens.expand(-1, length, -1)
    embedded = pe.embed(repeated, torch.arange(length))
    found = intermediates(split(embedded), split(embedded), pe, features=pe.features(embedded))
    change = (found.logits - scaled_scores(split(repeated), split(repeated))).mean(dim=0).double()
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    return change.masked_fill(future, torch.nan).numpy()
