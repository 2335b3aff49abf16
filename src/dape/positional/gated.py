"""A bias that an adapter adds to a trained model: B times one learnable number per head. The numbers are initially 0,
so that the model is unchanged before training."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dape.positional.base import AdditiveBias, AttentionDims, BiasSource, Pieces, accurate
from dape.positional.grid import Grid


class Gated(AdditiveBias):
    def __init__(self, dims: AttentionDims, base: AdditiveBias) -> None:
        super().__init__(dims)
        self.base = base
        self.supports_bidirectional = base.supports_bidirectional
        self.gate = nn.Parameter(torch.zeros(dims.num_heads))

    def bias_on(self, grid: Grid) -> Float[Tensor, "*b h q k"]:
        return accurate(self.gate).view(-1, 1, 1) * self.base.bias_on(grid)

    def source(self) -> BiasSource:
        inner = self.base.source()

        def at(lag: Tensor, *, causal: bool) -> Tensor:
            assert inner.at is not None
            return accurate(self.gate).view(-1, *(1,) * lag.dim()) * inner.at(lag, causal=causal)

        def pieces() -> Pieces:
            assert inner.ramp is not None
            kinks, *lines = inner.ramp.pieces()
            return Pieces(kinks, *(x * accurate(self.gate) for x in lines))

        ramp = None if inner.ramp is None else replace(inner.ramp, pieces=pieces)
        return BiasSource(module=self, on=Gated.bias_on, at=at if inner.at else None, ramp=ramp)
