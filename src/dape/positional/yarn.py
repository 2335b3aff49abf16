"""YaRN (Peng et al., 2023): rope that interpolates its slow channels, keeps the fast ones, and sharpens the logits.

With s the stretch (evaluated / training length), L the training length and dim(n) = d ln(L / (2 pi n)) / (2 ln base):
lo = max(floor dim(beta_fast), 0), hi = min(ceil dim(beta_slow), d - 1), ramp_m = clip((m - lo) / (hi - lo), 0, 1),
w'_m = w_m (1 - ramp_m) + (w_m / s) ramp_m,   q and k are multiplied by 0.1 ln s + 1.   At s = 1 this is rope.
``attention_factor`` replaces this factor; without ``truncate``, lo and hi are not rounded (gpt-oss).
"""

import math
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from dape.positional.base import AttentionDims, require_positive
from dape.positional.rope import PositionInterpolation, Spectrum, StretchOptions


def yarn_ramp_bounds(
    head_dim: int, train_length: int, base: float, beta_fast: float, beta_slow: float, *, truncate: bool = True
) -> tuple[float, float]:
    """The first and the last channel pair of the transition from kept to interpolated."""

    def dim(rotations: float) -> float:
        return head_dim * math.log(train_length / (2 * math.pi * rotations)) / (2 * math.log(base))

    down, up = (math.floor, math.ceil) if truncate else (float, float)
    low = max(down(dim(beta_fast)), 0)
    return low, max(min(up(dim(beta_slow)), head_dim - 1), low)


class Yarn(PositionInterpolation):
    def __init__(
        self,
        dims: AttentionDims,
        *,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        attention_factor: float | None = None,
        truncate: bool = True,
        **options: Unpack[StretchOptions],
    ) -> None:
        super().__init__(dims, **options)
        for name, beta in (("beta_fast", beta_fast), ("beta_slow", beta_slow)):
            require_positive(name, beta)
        if attention_factor is not None:
            require_positive("attention_factor", attention_factor)
        self.attention_factor = attention_factor
        betas = (beta_fast, beta_slow)
        self.low, self.high = yarn_ramp_bounds(self.width, dims.train_length, self.base, *betas, truncate=truncate)

    def stretched(self, s: Float[Tensor, "*b #t 1"]) -> Spectrum:
        plain = self.frequencies(s.device, s.dtype)
        width = self.high - self.low if self.high != self.low else 0.001
        pair = torch.arange(len(plain), device=s.device, dtype=s.dtype)
        ramp = ((pair - self.low) / width).clamp(0, 1)
        amplitude = 0.1 * s.log() + 1 if self.attention_factor is None else self.attention_factor
        return plain * (1 - ramp) + plain / s * ramp, amplitude
