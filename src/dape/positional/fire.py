"""FIRE (Li et al., 2024):   b(i, j) = MLP( psi(i - j) / (psi(max(L, i)) + eps) ),   psi(x) = log(|c x| + 1).

c (initially 0.1) and the multiplier of L are learned; MLP: 1 -> width -> heads. L is the training length unless given.
The paper does not give L, and the released files contradict each other (512, 64, 256), so report the value with
results. The input of the MLP is in [0, 1] for any length. The bias of a lag changes with i, so that no table over lags
exists. Bidirectional: distances are those of ALiBi's and Kerple's bidirectional form, and the largest distance of the
row replaces i.

As in the authors' program, the activation is ReLU for FIRE alone and LeakyReLU inside DAPE.
"""

import math
from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dape.modules import is_plain
from dape.positional.base import (
    LEAKY_SLOPE,
    AdditiveBias,
    AttentionDims,
    BiasSource,
    BidirectionalForm,
    Pieces,
    Ramp,
    asymmetric_distance,
    require_choice,
    require_count,
    require_positive,
)
from dape.positional.grid import Grid
from dape.positional.layers import Affine, across_heads

EPSILON = 1e-6
Activation = Literal["relu", "leaky_relu"]


class Fire(AdditiveBias):
    def __init__(
        self,
        dims: AttentionDims,
        *,
        mlp_width: int = 32,
        threshold: float | None = None,
        activation: Activation = "relu",
        bidirectional: BidirectionalForm = "past_bonus",
    ) -> None:
        super().__init__(dims)
        self.threshold = float(dims.train_length if threshold is None else require_positive("threshold", threshold))
        require_choice("activation", activation, Activation)
        self.slope = LEAKY_SLOPE if activation == "leaky_relu" else 0.0
        self.bidirectional: BidirectionalForm = require_choice("bidirectional", bidirectional, BidirectionalForm)
        require_count("mlp_width", mlp_width)
        self.c = nn.Parameter(torch.tensor(0.1))
        self.threshold_multiplier = nn.Parameter(torch.tensor(1.0))
        self.first = Affine(1, mlp_width)
        self.second = Affine(mlp_width, dims.num_heads)

    @classmethod
    def defaults_inside_dape(cls, hidden: int) -> dict[str, Any]:
        # In the authors' program one setting is both widths, so a sweep over DAPE's width changes FIRE's too.
        return {"activation": "leaky_relu", "mlp_width": hidden}

    def normalised_distance(self, grid: Grid) -> Float[Tensor, "*b q k"]:
        near = self._of_lag(grid.lag(), causal=grid.causal, dtype=self.precision)
        return near / self._of_row(grid, self.precision).unsqueeze(-1)

    def _of_lag(self, lag: Int[Tensor, "*s"], *, causal: bool, dtype: torch.dtype) -> Float[Tensor, "*s"]:
        return psi(self._distance(lag, causal, dtype), self.c.to(dtype))

    def _of_row(self, grid: Grid, dtype: torch.dtype) -> Float[Tensor, "*b q"]:
        threshold = (self.threshold_multiplier.to(dtype) * self.threshold).abs()
        reach = torch.stack([self._distance(lag, grid.causal, dtype) for lag in grid.extreme_lags()]).amax(0)
        return psi(torch.maximum(reach, threshold), self.c.to(dtype)) + EPSILON

    def bias_on(self, grid: Grid) -> Float[Tensor, "*b h q k"]:
        u = self.normalised_distance(grid).unsqueeze(-3)
        hidden = nn.functional.leaky_relu(across_heads(self.first, u), self.slope)
        return across_heads(self.second, hidden)

    def _distance(self, lag: Tensor, causal: bool, dtype: torch.dtype) -> Tensor:
        return asymmetric_distance(lag, causal=causal, form=self.bidirectional, dtype=dtype)

    # The perceptron as a piecewise linear function of its one input: it is linear between the points where a unit
    # changes its slope. The tables are small, so float64 costs no time.

    def source(self) -> BiasSource:
        own = type(self).bias_on is Fire.bias_on and type(self).normalised_distance is Fire.normalised_distance
        plain = all(is_plain(layer, Affine) and layer.bias is not None for layer in (self.first, self.second))
        if not (own and plain):
            return super().source()
        exact = torch.float32 if self.c.device.type == "mps" else torch.float64
        ramp = Ramp(
            at=lambda lag, causal: self._of_lag(lag, causal=causal, dtype=exact),
            on_rows=lambda grid: self._of_row(grid, exact).reciprocal(),
            pieces=lambda: self._pieces(exact),
            kinks=len(self.first.weight),
        )
        return replace(super().source(), ramp=ramp)

    def _pieces(self, dtype: torch.dtype) -> Pieces:
        assert self.first.bias is not None and self.second.bias is not None
        w1, b1 = self.first.weight.to(dtype).squeeze(1), self.first.bias.to(dtype)
        w2, b2 = self.second.weight.to(dtype), self.second.bias.to(dtype)
        with torch.no_grad():
            kinks, slopes = _units(w1, b1, self.slope, self.precision)
        return Pieces(kinks, (slopes * w1) @ w2.t(), (slopes * b1) @ w2.t() + b2)


def _units(
    w1: Float[Tensor, " w"], b1: Float[Tensor, " w"], below: float, precision: torch.dtype
) -> tuple[Float[Tensor, " w"], Float[Tensor, "p w"]]:
    """The points where units change their slope, and the slope of every unit in every piece."""
    low, never = (torch.full_like(w1, x, dtype=precision) for x in (-math.inf, math.inf))
    at = (-b1 / w1).to(precision)
    # A unit is steep above 0, not at 0. With w1 < 0 it is flat at -b1 / w1 already, so its kink is the number before.
    at = torch.where(w1 == 0, never, torch.where(w1 < 0, at.nextafter(low), at))
    kinks, order = at.sort(stable=True)
    passed = torch.arange(len(w1) + 1, device=w1.device).unsqueeze(1) > order.argsort()
    steep = torch.where(w1 == 0, b1 > 0, passed == (w1 > 0))
    return kinks, torch.where(steep, torch.ones_like(w1), torch.full_like(w1, below))


def psi(x: Float[Tensor, "*s"], c: Float[Tensor, ""]) -> Float[Tensor, "*s"]:
    return torch.log1p((c * x).abs())
