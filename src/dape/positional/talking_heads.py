"""Talking heads (Shazeer et al., 2020), of the logits:   logits_h = A_h + sum_g M_hg A_g.

M (h, h) is learned and 0 at first. The paper mixes once before softmax, with M + 1 as its matrix, and once more after
it; an encoding ends before softmax, so the second mixture is not there. No position enters. With f linear and nothing
in between, this is what dape-nope would be.
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
        self,
        scores: Float[Tensor, "*b h q k"],
        q: Float[Tensor, "*b h q d"],
        k: Float[Tensor, "*b g k d"],
        grid: Grid,
    ) -> Float[Tensor, "*b h q k"]:
        mixed = accurate(self.mix).to(scores.dtype) @ scores.flatten(-2)
        return scores + mixed.view_as(scores)
