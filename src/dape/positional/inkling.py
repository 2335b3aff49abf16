"""Inkling's relative positions (Thinking Machines, 2026): a bias over lags that depends on the query's token.

r_i = W_r x_i are ``rank`` numbers for every head, x_i the input of the attention layer; the heads share P (rank,
extent): logits = tau_i (A_ij + (r_i P)[i - j])   where i - j < extent, tau_i A_ij at larger lags,
tau_i = 1 + r ln(max(1, (i + 1) / L)),   r = ``log_rate``, L = ``log_floor``; extent and L are the training length
unless given.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dape.modules import without_autocast
from dape.positional.base import (
    AdditiveBias,
    AttentionDims,
    accurate,
    require_count,
    require_features,
    require_positive,
)
from dape.positional.grid import Grid
from dape.positional.layers import Affine
from dape.positional.row_forms import RelativeProduct

STD = 0.02


class Inkling(AdditiveBias):
    supports_bidirectional = False
    absolute = True

    def __init__(
        self,
        dims: AttentionDims,
        *,
        rank: int = 16,
        extent: int | None = None,
        log_floor: float | None = None,
        log_rate: float = 0.1,
    ) -> None:
        super().__init__(dims)
        self.rank = require_count("rank", rank)
        self.log_floor = require_positive("log_floor", dims.train_length if log_floor is None else log_floor)
        self.log_rate = require_positive("log_rate", log_rate)
        self.w_r = Affine(dims.model_dim, dims.num_heads * rank, bias=False)
        nn.init.normal_(self.w_r.weight, std=STD)
        reach = dims.train_length if extent is None else require_count("extent", extent)
        self.profiles = nn.Parameter(STD * torch.randn(rank, reach))

    def features(
        self,
        x: Float[Tensor, "b t m"],
        *,
        past: Float[Tensor, "b n"] | None = None,
        padding: Bool[Tensor, "b t"] | None = None,
    ) -> Float[Tensor, "b t n"]:
        """r of all heads."""
        with without_autocast(x.device):
            return self.w_r(accurate(x))

    def temperature(self, grid: Grid) -> Float[Tensor, "*b 1 q 1"]:
        n = (grid.q_index + 1).to(self.precision)
        return (1 + self.log_rate * (n / self.log_floor).clamp(min=1).log()).unsqueeze(-2).unsqueeze(-1)

    def rotate(
        self, q: Float[Tensor, "*b h q d"], k: Float[Tensor, "*b g k d"], grid: Grid
    ) -> tuple[Float[Tensor, "*b h q d"], Float[Tensor, "*b g k d"]]:
        return (accurate(q) * self.temperature(grid)).to(q.dtype), k

    @property
    def rotates_once(self) -> bool:
        return True

    def of_queries(self, grid: Grid) -> Float[Tensor, "*b h q r"]:
        """tau r."""
        require_features(self, given=grid.q_features is not None)
        assert grid.q_features is not None
        r = grid.q_features.unflatten(-1, (self.dims.num_heads, self.rank)).transpose(-2, -3)
        return accurate(r).to(self.precision) * self.temperature(grid)

    def bias_on(self, grid: Grid) -> Float[Tensor, "*b h q k"]:
        by_lag = self.of_queries(grid) @ accurate(self.profiles).to(self.precision)
        lag, extent = grid.lag().unsqueeze(-3), self.profiles.shape[1]
        index = lag.clamp(0, extent - 1)
        batch = torch.broadcast_shapes(by_lag.shape[:-1], index.shape[:-1])
        found = by_lag.expand(*batch, extent).gather(-1, index.expand(*batch, index.shape[-1]))
        return found.masked_fill((lag < 0) | (lag >= extent), 0.0)

    def row_form(self) -> RelativeProduct | None:
        if type(self).logits is not AdditiveBias.logits or self.rank > self.dims.head_dim:
            return None
        nothing = torch.zeros(self.dims.num_heads, self.dims.head_dim, device=self.profiles.device)
        return RelativeProduct(u=nothing, v=nothing, at=self.profiles_at, second=self._second)

    def _second(self, grid: Grid) -> Float[Tensor, "b h q d"]:
        wide = nn.functional.pad(self.of_queries(grid), (0, self.dims.head_dim - self.rank))
        return wide * math.sqrt(self.dims.head_dim)

    def profiles_at(self, lag: Int[Tensor, " n"], grid: Grid) -> Float[Tensor, "h n d"]:
        """P at each lag, as wide as a head."""
        lag, extent = grid.read_lag(lag), self.profiles.shape[1]
        there = accurate(self.profiles)[:, lag.clamp(0, extent - 1)].masked_fill((lag < 0) | (lag >= extent), 0.0)
        wide = nn.functional.pad(there.T, (0, self.dims.head_dim - self.rank))
        return wide.expand(self.dims.num_heads, *wide.shape)
