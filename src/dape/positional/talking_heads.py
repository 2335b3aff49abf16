"""Talking heads (Shazeer et al., 2020) before softmax:   logits_h = A_h + sum_g M_hg A_g.

M (h, h) is learned and initially 0; the matrix of the paper is M + 1. The paper mixes heads again after softmax, which
an encoding cannot do. The logits do not depend on positions. dape-nope with a linear f would be the same.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dape.positional.base import AttentionDims, PositionalEncoding, accurate
from dape.positional.grid import Grid


class TalkingHeads(PositionalEncoding):
    def __init__(self, dims: AttentionDims) -> None:
        super().__init__(dims)
        self.mix = nn.Parameter(torch.zeros(dims.num_heads, dims.num_heads))

    def logits(
        self, scores: Float[Tensor, "*b h q k"], q: Float[Tensor, "*b h q d"], k: Float[Tensor, "*b g k d"], grid: Grid
    ) -> Float[Tensor, "*b h q k"]:
        mixed = accurate(self.mix).to(scores.dtype) @ scores.flatten(-2)
        return scores + mixed.view_as(scores)
