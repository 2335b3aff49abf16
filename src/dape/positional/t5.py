"""T5's relative bias (Raffel et al., 2020):   b_h(i, j) = E[bucket(i - j), h] * scale.

Each near lag has its own bucket, far lags share buckets whose width grows logarithmically, and all lags beyond
``max_distance`` share the last bucket. The bidirectional form uses half of the buckets for each side.
The factor sqrt(head_dim) is not in T5. It is the default here because the authors of DAPE use it.
"""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dape.positional.base import AttentionDims, RelativeBias, accurate, require_choice, require_count

BiasScale = Literal["sqrt_d", "one"]


def bucket_starts(buckets: int, max_distance: int) -> list[int]:
    """The smallest distance of every bucket of one side. A bucket with the same start as the next one is never used.
    Computed in Python, so that all devices have the same edges."""
    exact = buckets // 2
    starts = list(range(exact))
    for b in range(exact, buckets):
        starts.append(math.ceil(exact * (max_distance / exact) ** ((b - exact) / (buckets - exact)) - 1e-9))
    return starts


class T5(RelativeBias):
    def __init__(
        self, dims: AttentionDims, *, num_buckets: int = 32, max_distance: int = 128, bias_scale: BiasScale = "sqrt_d"
    ) -> None:
        super().__init__(dims)
        if require_count("num_buckets", num_buckets) % 4:
            raise ValueError(f"num_buckets must be a multiple of 4 (two sides, near and far), got {num_buckets}")
        if require_count("max_distance", max_distance) <= num_buckets // 2:
            raise ValueError(f"max_distance must exceed num_buckets / 2 = {num_buckets // 2}, got {max_distance}")
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        require_choice("bias_scale", bias_scale, BiasScale)
        self.scale = math.sqrt(dims.head_dim) if bias_scale == "sqrt_d" else 1.0
        self.table = nn.Parameter(torch.empty(num_buckets, dims.num_heads))
        nn.init.xavier_normal_(self.table)

    def bucket(self, lag: Int[Tensor, "*s"], *, causal: bool) -> Int[Tensor, "*s"]:
        per_side = self.num_buckets if causal else self.num_buckets // 2
        starts = torch.tensor(bucket_starts(per_side, self.max_distance), device=lag.device)
        lag = lag.long()
        distance = lag.clamp(min=0) if causal else lag.abs()
        bucket = torch.bucketize(distance, starts, right=True) - 1
        return bucket if causal else bucket + per_side * (lag < 0)

    def bias_at(self, lag: Int[Tensor, "*s"], *, causal: bool) -> Float[Tensor, "h *s"]:
        values = nn.functional.embedding(self.bucket(lag, causal=causal), accurate(self.table))
        return values.movedim(-1, 0) * self.scale
