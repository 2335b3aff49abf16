"""Learned absolute positions: x_p + E[p], E a table of ``max_positions`` rows. Larger positions raise an error."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dape.positional.base import AttentionDims, PositionalEncoding, require_count
from dape.positional.positions import as_positions

DEFAULT_ROWS = 2048
"""The size in the authors' configurations, used unless the training length is larger."""


class Learned(PositionalEncoding):
    def __init__(self, dims: AttentionDims, *, max_positions: int | None = None) -> None:
        super().__init__(dims)
        rows = (
            max(DEFAULT_ROWS, dims.train_length)
            if max_positions is None
            else require_count("max_positions", max_positions)
        )
        self.table = nn.Parameter(torch.empty(rows, dims.model_dim))
        nn.init.normal_(self.table, std=(2 / (5 * dims.model_dim)) ** 0.5)

    def embed(self, x: Float[Tensor, "*b t m"], positions: Int[Tensor, "*#b t"]) -> Float[Tensor, "*b t m"]:
        positions = as_positions("positions", positions)
        # Reading the largest position would break a compiled graph. There, the lookup itself checks bounds.
        if not torch.compiler.is_compiling() and positions.numel():
            low, high = int(positions.min()), int(positions.max())
            if low < 0 or high >= len(self.table):
                raise ValueError(
                    f"learned positions reach from 0 to {len(self.table) - 1}, but position "
                    f"{high if low >= 0 else low} was asked for. Build with max_positions={max(high, 0) + 1} before "
                    "training, use shorter inputs, or choose an encoding that extrapolates (see `dape list`)"
                )
        return x + nn.functional.embedding(positions, self.table).to(x.dtype)
