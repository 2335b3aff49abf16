"""YaRN (Peng et al., 2023): rope whose slow channels are interpolated, whose fast ones are kept, and whose logits
are sharpened.

With s the stretch (evaluated / training length), L the training length and dim(n) = d ln(L / (2 pi n)) / (2 ln base):
lo = max(floor dim(beta_fast), 0), hi = min(ceil dim(beta_slow), d - 1), ramp_m = clip((m - lo) / (hi - lo), 0, 1),
w'_m = w_m (1 - ramp_m) + (w_m / s) ramp_m,   q and k are multiplied by 0.1 ln s + 1.   At s = 1 this is rope.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from dape.positional.base import AttentionDims, require_positive
from dape.positional.rope import PositionInterpolation, Spectrum


def yarn_ramp_bounds(
    head_dim: int, train_length: int, base: float, beta_fast: float, beta_slow: float
) -> tuple[int, int]:
    """The channel pairs between which interpolation is faded in."""

    def dim(rotations: float) -> float:
        return head_dim * math.log(train_length / (2 * math.pi * rotations)) / (2 * math.log(base))

    low = max(math.floor(dim(beta_fast)), 0)
    return low, max(min(math.ceil(dim(beta_slow)), head_dim - 1), low)


class Yarn(PositionInterpolation):
    def __init__(
        self,
        dims: AttentionDims,
        *,
        base: float = 10000.0,
        interleaved: bool = False,
        scale: float | None = None,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
    ) -> None:
        super().__init__(dims, base=base, interleaved=interleaved, scale=scale)
        for name, beta in (("beta_fast", beta_fast), ("beta_slow", beta_slow)):
            require_positive(name, beta)
        self.low, self.high = yarn_ramp_bounds(dims.head_dim, dims.train_length, base, beta_fast, beta_slow)

    def stretched(self, s: Float[Tensor, "*b #t 1"]) -> Spectrum:
        plain = self.frequencies(s.device, s.dtype)
        width = self.high - self.low if self.high != self.low else 0.001
        pair = torch.arange(len(plain), device=s.device, dtype=s.dtype)
        ramp = ((pair - self.low) / width).clamp(0, 1)
        return plain * (1 - ramp) + plain / s * ramp, 0.1 * s.log() + 1
