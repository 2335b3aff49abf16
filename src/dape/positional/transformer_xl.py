"""Transformer-XL (Dai et al., 2019):   logit = [ (q_i + u) . k_j + (q_i + v) . (W_R s(i - j)) ] / sqrt(d).

s is a sinusoid of width h d, W_R a matrix without bias; u and v are one vector per head. The positional term depends on
the query, so it is not an additive bias. The bidirectional form evaluates s at j - i, as DeepMind's program does;
because W_R is learned, the sign is a convention.

``dm_compat`` reproduces DeepMind's program with randomised positions: its sinusoid table has ``pool`` rows and none for
negative lags. Indices are shifted by ``pool`` and clipped, so that lag 0 and all future lags share one row.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dape.modules import is_plain
from dape.positional.base import AttentionDims, PositionalEncoding, accurate, require_positive, share_heads
from dape.positional.grid import Grid
from dape.positional.layers import Affine
from dape.positional.row_forms import RelativeProduct
from dape.positional.sinusoidal import sinusoid


class TransformerXL(PositionalEncoding):
    def __init__(self, dims: AttentionDims, *, base: float = 10000.0, dm_compat: bool = False) -> None:
        super().__init__(dims)
        width = dims.num_heads * dims.head_dim
        if width % 2:
            raise ValueError(f"transformer-xl needs an even num_heads * head_dim, got {width}")
        self.base = require_positive("base", base)
        self.dm_compat = dm_compat
        self.u = nn.Parameter(torch.randn(dims.num_heads, dims.head_dim) * 0.02)
        self.v = nn.Parameter(torch.randn(dims.num_heads, dims.head_dim) * 0.02)
        self.w_r = Affine(width, width, bias=False)

    def logits(
        self, scores: Float[Tensor, "*b h q k"], q: Float[Tensor, "*b h q d"], k: Float[Tensor, "*b g k d"], grid: Grid
    ) -> Float[Tensor, "*b h q k"]:
        q, k = q.to(scores.dtype), k.to(scores.dtype)
        u, v = accurate(self.u).to(scores.dtype), accurate(self.v).to(scores.dtype)
        content = torch.einsum("hd,...hkd->...hk", u, share_heads(k, self.dims.num_heads)).unsqueeze(-2)

        lags, index = grid.lag_table()
        encoded = self.encode(self.sinusoid_position(lags, grid)).to(scores.dtype)
        by_lag = torch.einsum("...hqd,hnd->...hqn", q + v.unsqueeze(-2), encoded)
        position = by_lag.gather(-1, index.unsqueeze(-3).expand(*by_lag.shape[:-1], index.shape[-1]))
        return scores + (content + position) / math.sqrt(self.dims.head_dim)

    def row_form(self) -> RelativeProduct | None:
        if type(self).logits is not TransformerXL.logits or not is_plain(self.w_r, Affine):
            return None
        return RelativeProduct(u=accurate(self.u), v=accurate(self.v), at=self.encode_lags)

    def encode_lags(self, lag: Int[Tensor, " n"], grid: Grid) -> Float[Tensor, "h n d"]:
        """r of true lags."""
        return self.encode(self.sinusoid_position(grid.read_lag(lag), grid))

    def sinusoid_position(self, lag: Int[Tensor, " n"], grid: Grid) -> Int[Tensor, " n"]:
        if grid.causal:
            return lag
        if self.dm_compat and grid.draw is not None:
            return (grid.draw.pool - lag).clamp(max=grid.draw.pool - 1)
        return -lag

    def encode(self, position: Int[Tensor, " n"]) -> Float[Tensor, "h n d"]:
        """W_R s(position), split into heads."""
        heads, width = self.dims.num_heads, self.dims.head_dim
        s = sinusoid(position, heads * width, base=self.base, dtype=self.precision)
        return self.w_r(s).view(-1, heads, width).transpose(0, 1)
