"""Randomised positions (Ruoss et al., 2023): the model sees large positions while it trains on short inputs.

There are two kinds of draws, for two kinds of encodings:

* encodings that read *positions* (sinusoidal, learned, rope): position p becomes the p-th smallest of n distinct
  integers drawn from ``{0, ..., pool-1}``;
* encodings that read *lags* (alibi, kerple, fire, transformer-xl, ...): distance 0 stays 0 and distance e > 0 becomes
  the e-th smallest of n-1 distinct integers from ``{1, ..., pool-1}``, the same for every query. Differences of sampled
  positions would have another distribution; DeepMind's program draws distances like this.

A :class:`Draw` holds both tables. The caller makes it with an explicit generator: one draw per training step (or per
layer), one draw for a whole generation.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

FARTHEST = 1 << 53
"""The largest distance of a position from 0: float64 represents each such position exactly, and int64 each
difference."""


def require_integers(name: str, values: object) -> None:
    if not isinstance(values, Tensor):
        raise TypeError(
            f"{name} must be a tensor of integers, got {type(values).__name__}; torch.arange(...) makes one"
        )
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise TypeError(f"{name} must hold integers, got {values.dtype}")


def as_positions(name: str, values: Int[Tensor, "*s"]) -> Int[Tensor, "*s"]:
    """Positions in int64, because differences of narrower or unsigned integers would wrap around.

    Raises an error for impossible positions, except where the check would break a compiled graph or stall a device."""
    require_integers(name, values)
    found = values.long()
    readable = values.device.type == "cpu" and not torch.compiler.is_compiling()
    if not readable or values.dtype.itemsize < 8 or not values.numel():
        return found
    low, high = found.aminmax()
    lowest = -FARTHEST if values.dtype.is_signed else 0  # beyond int64, unsigned values have become negative
    if not lowest <= int(low) <= int(high) <= FARTHEST:
        farthest = max(values.flatten().tolist(), key=abs)
        raise ValueError(f"{name} must lie between -2^53 and 2^53, got {farthest}")
    return found


def hold_int64(owner: Any, *names: str) -> None:
    """Convert integer fields of a frozen dataclass to int64."""
    for name in names:
        values = getattr(owner, name)
        if values is not None and values.dtype != torch.int64:
            require_integers(name, values)
            object.__setattr__(owner, name, values.long())


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Randomised positions and distances, drawn once by :func:`draw_positions`."""

    positions: Int[Tensor, " n"]
    """Replacements for the positions 0, 1, 2, ...; sorted and distinct."""
    past: Int[Tensor, " n"]
    """Replacements for the distances 0, 1, 2, ... to past keys; ``past[0] == 0``."""
    future: Int[Tensor, " n"]
    """Replacements for distances to future keys; equal to ``past`` unless both sides were drawn."""
    pool: int
    """Positions were drawn from ``0 ... pool-1``."""

    def __post_init__(self) -> None:
        hold_int64(self, "positions", "past", "future")

    def position(self, index: Int[Tensor, "*s"]) -> Int[Tensor, "*s"]:
        if index.device.type == "cpu":  # elsewhere reading them would stall the device
            self.require_covered(index)
        return self.positions.to(index.device)[index.long()]

    def lag(self, lag: Int[Tensor, "*s"]) -> Int[Tensor, "*s"]:
        lag = lag.long()
        past, future = self.past.to(lag.device), self.future.to(lag.device)
        return torch.where(lag >= 0, past[lag.clamp(min=0)], -future[(-lag).clamp(min=0)])

    def require_covered(self, positions: Int[Tensor, "*s"]) -> None:
        """Raise ValueError for positions outside of the table: a negative index would silently read another
        position."""
        if torch.compiler.is_compiling() or not positions.numel():
            return
        low, high = (int(x) for x in as_positions("positions", positions).aminmax())
        if low < 0:
            raise ValueError(f"randomised positions count from 0, but position {low} is used")
        if high >= len(self.positions):
            raise ValueError(
                f"this draw covers {len(self.positions)} positions, but position {high} is used: "
                f"draw for the longest sequence in advance, pe.draw({high + 1}) or more"
            )


def draw_positions(
    length: int, *, pool: int, generator: torch.Generator | None = None, both_sides: bool = False
) -> Draw:
    """Draw randomised positions for sequences of up to ``length`` tokens.

    Args:
        length: tokens of the longest sequence.
        pool: positions are drawn from 0 to ``pool - 1``, without repetition, and sorted.
        generator: by default torch's own for the CPU, as dropout uses it.
        both_sides: draw the distances to future keys separately from those to past keys.

    Returns:
        The draw, for :meth:`Randomized.with_draw`.

    Raises:
        ValueError: a negative length, or one that is greater than ``pool``.

    Examples:
        >>> drawn = draw_positions(4, pool=100, generator=torch.Generator().manual_seed(0))
        >>> positions = drawn.positions.tolist()
        >>> len(positions), positions == sorted(set(positions))
        (4, True)
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
