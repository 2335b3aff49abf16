"""Multi-token attention (Golovneva et al., 2025) over rope: a logit also reads scores of neighbouring keys and heads.

near_h(i, j)   = A_h(i, j) + sum_t theta_h[t] shown A_h(i, j + t),   t = -kernel // 2 ... kernel // 2
logits_h(i, j) = near_h(i, j) + sum_g M_hg near_g(i, j),   g and h in the same group of ``group`` heads

``shown`` is 0 at hidden cells, so that no future key enters. theta (h, kernel) and M (h, group) are learned and
initially 0; the paper's kernels are theta + 1 at the middle and M + 1 on the diagonal. These are the paper's two
convolutions before softmax, the first over keys alone (its c_q = 1). A convolution over queries would need the scores
of earlier rows, but a hook has one row: blocks of rows and caches do not keep queries. The norm of each head's output
belongs to the attention layer.
"""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dape.positional.base import AttentionDims, accurate, require_count
from dape.positional.grid import Grid
from dape.positional.rope import Rope, RopeOptions


class MultiToken(Rope):
    def __init__(self, dims: AttentionDims, *, kernel: int = 11, group: int = 2, **rope: Unpack[RopeOptions]) -> None:
        super().__init__(dims, **rope)
        if require_count("kernel", kernel) % 2 == 0:
            raise ValueError(f"the kernel of multi-token must be odd, so that it has a middle; got {kernel}")
        if dims.num_heads % require_count("group", group):
            raise ValueError(f"{dims.num_heads} heads cannot be divided into groups of {group}: choose another `group`")
        self.theta = nn.Parameter(torch.zeros(dims.num_heads, kernel))
        self.mix = nn.Parameter(torch.zeros(dims.num_heads, group))

    def logits(
        self, scores: Float[Tensor, "*b h q k"], q: Float[Tensor, "*b h q d"], k: Float[Tensor, "*b g k d"], grid: Grid
    ) -> Float[Tensor, "*b h q k"]:
        visible = grid.visible()
        shown = scores if visible is None else scores * visible.unsqueeze(-3)
        near = scores + self._over_keys(shown)
        mix = accurate(self.mix).to(scores.dtype).unflatten(0, (-1, self.mix.shape[1]))
        grouped = near.unflatten(-3, (-1, self.mix.shape[1]))
        return near + (mix @ grouped.flatten(-2)).view_as(near)

    def _over_keys(self, shown: Float[Tensor, "*b h q k"]) -> Float[Tensor, "*b h q k"]:
        heads, width = self.theta.shape
        theta = accurate(self.theta).to(shown.dtype).view(heads, 1, 1, width)
        batched = shown.flatten(0, -4) if shown.dim() > 3 else shown.unsqueeze(0)
        return nn.functional.conv2d(batched, theta, padding=(0, width // 2), groups=heads).view_as(shown)
