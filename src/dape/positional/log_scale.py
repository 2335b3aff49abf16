"""Scores that grow with the logarithm of the length, so that attention does not flatten with more keys: ``logn-X`` for
any encoding X. A becomes s(n) A, where query i sees n = i + 1 keys (without causal mask, all keys):

ssmax       s_h ln n                               s_h learned, 1 / ln(training length) at first (Nakanishi, 2025)
clipped     max(1, ln n / ln L)                    L = ``log_floor`` tokens
llama4      1 + r ln(1 + floor(n / L))             r = ``log_rate``; L is 8192 there
ministral   1 + r ln(1 + floor((n - 1) / L))
inkling     1 + r ln(max(1, n / L))

L is the training length unless ``log_floor`` is given (8192 for llama4), r is 0.1. The factor multiplies the query, so
that f of DAPE reads s(n) A, and a bias is not scaled. n counts true positions, also with randomised positions.
"""

import math
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dape.positional.around import Around
from dape.positional.base import PositionalEncoding, accurate, require_choice, require_positive
from dape.positional.grid import Grid

LogScale = Literal["ssmax", "clipped", "llama4", "ministral", "inkling"]
LLAMA4_FLOOR = 8192


class LogScaled(Around):
    absolute = True

    def __init__(
        self,
        base: PositionalEncoding,
        *,
        log_scale: LogScale = "ssmax",
        log_floor: float | None = None,
        log_rate: float = 0.1,
    ) -> None:
        super().__init__(base.dims, base)
        self.log_scale: LogScale = require_choice("log_scale", log_scale, LogScale)
        self.log_rate = require_positive("log_rate", log_rate)
        usual = LLAMA4_FLOOR if log_scale == "llama4" else base.dims.train_length
        self.log_floor = require_positive("log_floor", usual if log_floor is None else log_floor)
        if log_scale == "clipped" and self.log_floor <= 1:
            raise ValueError(
                f"log_floor must be above 1 token, since scores are divided by its logarithm; got {log_floor}"
            )
        if log_scale == "ssmax":
            start = 1 / math.log(max(base.dims.train_length, 2))
            self.s = nn.Parameter(torch.full((base.dims.num_heads,), start))

    def scale(self, n: Float[Tensor, "*b t"]) -> Float[Tensor, "*b #h t"]:
        """s(n), per head if it is learned."""
        n, floor, rate = n.unsqueeze(-2), self.log_floor, self.log_rate
        match self.log_scale:
            case "ssmax":
                return accurate(self.s).unsqueeze(-1) * n.log()
            case "clipped":
                return (n.log() / math.log(floor)).clamp(min=1)
            case "llama4":
                return 1 + rate * (n / floor).floor().log1p()
            case "ministral":
                return 1 + rate * ((n - 1) / floor).floor().log1p()
            case "inkling":
                return 1 + rate * (n / floor).clamp(min=1).log()

    def rotate(
        self, q: Float[Tensor, "*b h q d"], k: Float[Tensor, "*b g k d"], grid: Grid
    ) -> tuple[Float[Tensor, "*b h q d"], Float[Tensor, "*b g k d"]]:
        q, k = self.base.rotate(q, k, grid)
        if not grid.k_index.numel():
            return q, k
        last = grid.q_index if grid.causal else replace(grid, draw=None).longest()[0]
        scale = self.scale((last + 1).clamp(min=1).to(self.precision))
        return (accurate(q) * scale.unsqueeze(-1)).to(q.dtype), k
