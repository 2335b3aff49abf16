"""FIRE (Li et al., 2024):   b(i, j) = MLP( psi(i - j) / (psi(max(L, i)) + eps) ),   psi(x) = log(|c x| + 1).

c (from 0.1) and the multiplier of L are learned; MLP: 1 -> width -> heads. L starts at the training length: the paper
does not give it and the released files contradict each other (512, 64, 256), so write the value down with results.
The input of the MLP stays within [0, 1] however long the sequence is. The bias of a lag changes with i, so no table
over lags exists. Bidirectional: distances as in ALiBi's and Kerple's bidirectional form, i replaced by the largest
distance of the row.

In the authors' program the activation is ReLU for FIRE alone and LeakyReLU inside DAPE; so here.
"""

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dape.positional.base import (
    LEAKY_SLOPE,
    AdditiveBias,
    AttentionDims,
    BidirectionalForm,
    accurate,
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
        # One setting serves both widths in the authors' program, so a sweep of DAPE's width moves FIRE's too.
        return {"activation": "leaky_relu", "mlp_width": hidden}

    def normalised_distance(self, grid: Grid) -> Float[Tensor, "*b q k"]:
        c = accurate(self.c)
        threshold = (accurate(self.threshold_multiplier) * self.threshold).abs()
        reach = torch.stack([self._distance(lag, grid) for lag in grid.extreme_lags()]).amax(0)
        far = torch.maximum(reach, threshold)
        return psi(self._distance(grid.lag(), grid), c) / (psi(far, c) + EPSILON).unsqueeze(-1)

    def bias_on(self, grid: Grid) -> Float[Tensor, "*b h q k"]:
        u = self.normalised_distance(grid).unsqueeze(-3)
        hidden = nn.functional.leaky_relu(across_heads(self.first, u), self.slope)
        return across_heads(self.second, hidden)

    def _distance(self, lag: Tensor, grid: Grid) -> Tensor:
        return asymmetric_distance(lag, causal=grid.causal, form=self.bidirectional, dtype=self.precision)


def psi(x: Float[Tensor, "*s"], c: Float[Tensor, ""]) -> Float[Tensor, "*s"]:
    return torch.log1p((c * x).abs())
