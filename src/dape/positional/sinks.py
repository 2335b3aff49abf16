"""Attention sinks (softmax-off-by-one, gpt-oss): ``sink-X`` for any encoding X. Every head has a column with a learned
logit s_h and no value:   weight_ij = exp(l_ij) / (exp(s_h) + sum_j exp(l_ij)).   s = 0 at first."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dape.positional.around import Around
from dape.positional.base import PositionalEncoding, accurate


class Sinks(Around):
    def __init__(self, base: PositionalEncoding) -> None:
        super().__init__(base.dims, base)
        self.sink = nn.Parameter(torch.zeros(base.dims.num_heads))

    def sinks(self) -> Float[Tensor, " h"]:
        return accurate(self.sink)
