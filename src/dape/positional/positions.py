"""Randomised positions (Ruoss et al., 2023): train on short inputs, yet show the model large positions.

Two families, because two kinds of encodings exist:

* encodings that read *positions* (sinusoidal, learned, rope): position p becomes the p-th smallest of n distinct
  integers drawn from ``{0, ..., pool-1}``;
* encodings that read *lags* (alibi, kerple, fire, transformer-xl, ...): distance 0 stays 0 and distance e > 0 becomes
  the e-th smallest of n-1 distinct integers from ``{1, ..., pool-1}``, the same for every query. This is not the
  distribution of differences of sampled positions; it is what DeepMind's program does.

A :class:`Draw` holds both tables. It is made outside of the encodings with an explicit generator and belongs to the
caller: one draw per training step (or per layer), one draw for a whole generation.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Draw:
    positions: Int[Tensor, " n"]
    """Sorted, distinct: what position 0, 1, 2, ... is read as."""
    past: Int[Tensor, " n"]
    """What distance 0, 1, 2, ... to a past key is read as; ``past[0] == 0``."""
    future: Int[Tensor, " n"]
    """The same for future keys; equal to ``past`` unless both sides were drawn."""
    pool: int
    """Positions were drawn from ``0 ... pool-1``."""

    def position(self, index: Int[Tensor, "*s"]) -> Int[Tensor, "*s"]:
        return self.positions.to(index.device)[index]

    def lag(self, lag: Int[Tensor, "*s"]) -> Int[Tensor, "*s"]:
        past, future = self.past.to(lag.device), self.future.to(lag.device)
        return torch.where(lag >= 0, past[lag.clamp(min=0)], -future[(-lag).clamp(min=0)])


def draw_positions(
    length: int, *, pool: int, generator: torch.Generator | None = None, both_sides: bool = False
) -> Draw:
    """Draw randomised positions for sequences of up to ``length`` tokens.

    ``both_sides`` draws the distances to future keys separately from those to past keys.
    Without a generator the draw comes from torch's default CPU generator, as dropout's would.
    """
    if length < 0:
        raise ValueError(f"cannot draw {length} positions; a length is 0 or more")
    if length > pool:
        raise ValueError(
            f"cannot draw {length} distinct positions from a pool of {pool}: "
            f"use pool={length} or more, or inputs of at most {pool} tokens"
        )
    distances = _draw_distances(length, pool, generator)
    return Draw(
        positions=_sorted_sample(length, pool, generator),
        past=distances,
        future=_draw_distances(length, pool, generator) if both_sides else distances,
        pool=pool,
    )


def _sorted_sample(count: int, pool: int, generator: torch.Generator | None) -> Int[Tensor, " n"]:
    return torch.randperm(pool, generator=generator)[:count].sort().values


def _draw_distances(length: int, pool: int, generator: torch.Generator | None) -> Int[Tensor, " n"]:
    """0 followed by sorted distinct draws from 1 ... pool-1."""
    others = 1 + _sorted_sample(max(length - 1, 0), max(pool - 1, 0), generator)
    return torch.cat([torch.zeros(min(length, 1), dtype=torch.long), others])
