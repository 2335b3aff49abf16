"""Rotations for longer inputs, under their names in the transformers library. With w_m = base^(-2m/d) those of rope, L
the training length (its ``original_max_position_embeddings``) and s the stretch of position interpolation:

ntk            base becomes base s^(d/(d-2)): the slowest pair is interpolated, the fastest hardly changes
dynamic        base becomes base (f s - (f - 1))^(d/(d-2)), f = ``factor``; ntk is f = 1
llama3         w_m / f if w_m makes fewer than ``low_freq_factor`` turns in L tokens, w_m from ``high_freq_factor``
               turns on, linear in the number of turns between them; the same for all lengths
longrope       w_m / short_m up to L tokens, w_m / long_m for longer inputs; q and k times sqrt(1 + ln f / ln L)
proportional   p-RoPE (Barbero et al., 2024): only the fastest ``fraction`` of the pairs rotates; d is the head's width
"""

import math
from collections.abc import Sequence
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from dape.positional.base import AttentionDims, require_positive
from dape.positional.rope import Pairing, PositionInterpolation, Rope, RopeOptions, Spectrum, StretchOptions

FACTOR = 8.0
"""As in Llama 3.1."""


class DynamicNtk(PositionInterpolation):
    def __init__(self, dims: AttentionDims, *, factor: float = 2.0, **options: Unpack[StretchOptions]) -> None:
        super().__init__(dims, **options)
        self.factor = _at_least_one("factor", factor)
        if self.width < 4:
            raise ValueError(f"a base that grows by s^(d/(d-2)) needs at least 4 channels that turn, got {self.width}")

    def stretched(self, s: Float[Tensor, "*b #t 1"]) -> Spectrum:
        grown = (self.factor * s - (self.factor - 1)) ** (self.width / (self.width - 2))
        channel = torch.arange(self.width // 2, device=s.device, dtype=s.dtype)
        return (self.base * grown) ** (-2 * channel / self.width), 1.0


class Ntk(DynamicNtk):
    """``scale`` fixes the stretch; without it, the length determines the stretch."""

    def __init__(self, dims: AttentionDims, **options: Unpack[StretchOptions]) -> None:
        super().__init__(dims, factor=1.0, **options)


class Llama3(Rope):
    def __init__(
        self,
        dims: AttentionDims,
        *,
        factor: float = FACTOR,
        low_freq_factor: float = 1.0,
        high_freq_factor: float = 4.0,
        **rope: Unpack[RopeOptions],
    ) -> None:
        super().__init__(dims, **rope)
        self.factor = _at_least_one("factor", factor)
        self.low = require_positive("low_freq_factor", low_freq_factor)
        self.high = require_positive("high_freq_factor", high_freq_factor)
        if self.low >= self.high:
            raise ValueError(f"low_freq_factor={self.low:g} must be below high_freq_factor={self.high:g}")

    def frequencies(self, device: torch.device, dtype: torch.dtype) -> Float[Tensor, " c"]:
        plain = super().frequencies(device, dtype)
        turns = self.dims.train_length * plain / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return plain * kept + plain / self.factor * (1 - kept)


class LongRope(PositionInterpolation):
    """Models find their factors by a search. By default, ``short_factor`` is 1 and ``long_factor`` is f^(2m/(d-2)), as
    in ntk with the stretch f = ``factor``."""

    def __init__(
        self,
        dims: AttentionDims,
        *,
        short_factor: Sequence[float] | None = None,
        long_factor: Sequence[float] | None = None,
        factor: float = FACTOR,
        attention_factor: float | None = None,
        **rope: Unpack[RopeOptions],
    ) -> None:
        super().__init__(dims, **rope)
        pairs, self.factor = self.width // 2, _at_least_one("factor", factor)
        if long_factor is None:
            long_factor = [self.factor ** (m / max(1, pairs - 1)) for m in range(pairs)]
        self.short_factor = _factors("short_factor", [1.0] * pairs if short_factor is None else short_factor, pairs)
        self.long_factor = _factors("long_factor", long_factor, pairs)
        usual = math.sqrt(1 + math.log(self.factor) / math.log(max(2, dims.train_length)))
        given = usual if attention_factor is None else attention_factor
        self.attention_factor = require_positive("attention_factor", given)

    def stretched(self, s: Float[Tensor, "*b #t 1"]) -> Spectrum:
        plain = self.frequencies(s.device, s.dtype)
        short, long = (torch.tensor(x, device=s.device, dtype=s.dtype) for x in (self.short_factor, self.long_factor))
        return plain / torch.where(s > 1, long, short), self.attention_factor


class Proportional(Rope):
    def __init__(
        self, dims: AttentionDims, *, fraction: float = 0.75, factor: float = 1.0, **pairing: Unpack[Pairing]
    ) -> None:
        super().__init__(dims, **pairing)
        if not 0 < require_positive("fraction", fraction) <= 1:
            raise ValueError(f"fraction is how many of the pairs turn, at most 1 for all; got {fraction}")
        self.turning, self.factor = int(fraction * dims.head_dim // 2), _at_least_one("factor", factor)

    def frequencies(self, device: torch.device, dtype: torch.dtype) -> Float[Tensor, " c"]:
        plain = super().frequencies(device, dtype)
        turns = torch.arange(len(plain), device=plain.device) < self.turning
        return torch.where(turns, plain / self.factor, 0.0)


def _at_least_one(what: str, value: float) -> float:
    if require_positive(what, value) < 1:
        raise ValueError(f"{what} is how many times longer inputs may be: 1 or more, got {value}")
    return value


def _factors(what: str, given: Sequence[float], pairs: int) -> tuple[float, ...]:
    values = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else None
    if values is None or len(values) != pairs:
        raise ValueError(f"{what} must be {pairs} numbers, one per pair of channels that turns; got {given!r}")
    return tuple(require_positive(what, value) for value in values)
