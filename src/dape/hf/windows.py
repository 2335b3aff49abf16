"""Attention layers that see the last tokens only (sliding windows), or bound their scores (soft caps).

No encoding knows of them, so one is wrapped in :class:`Bounded` for a call. The operator then computes whole rows. A
window is computed by blocks of queries, each with the keys that its queries see.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from dape.models.places import Places
from dape.ops.attention import attention
from dape.positional.base import PositionalEncoding
from dape.positional.grid import Grid

BLOCK = 256
"""The fewest queries of a block; it has as many as the window if that is longer."""


class Bounded(PositionalEncoding):
    """An encoding of scores ``cap tanh(A / cap)``, whose keys ``window`` or more positions back are hidden."""

    def __init__(self, base: PositionalEncoding, *, cap: float | None = None, window: int | None = None) -> None:
        super().__init__(base.dims)
        self.base, self.cap, self.window = base, cap, window
        self.reads_hidden_columns = base.reads_hidden_columns

    def logits(
        self, scores: Float[Tensor, "*b h q k"], q: Float[Tensor, "*b h q d"], k: Float[Tensor, "*b g k d"], grid: Grid
    ) -> Float[Tensor, "*b h q k"]:
        if self.cap is not None:
            scores = self.cap * torch.tanh(scores / self.cap)
        logits = self.base.logits(scores, q, k, grid)
        if self.window is None:
            return logits
        far = grid.q_index.unsqueeze(-1) - grid.k_index.unsqueeze(-2) >= self.window
        return logits.masked_fill(far.unsqueeze(-3), -torch.inf)


def bounded_attention(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    v: Float[Tensor, "b g k e"],
    pe: PositionalEncoding,
    places: Places,
    *,
    cap: float | None,
    window: int | None,
) -> Float[Tensor, "b h q e"]:
    """``places`` are those of the keys; the last keys belong to the queries."""
    queries, keys = q.shape[2], k.shape[2]
    if window is None or keys <= window:
        return _block(q, k, v, pe if cap is None else Bounded(pe, cap=cap), places, 0, keys)
    size = max(BLOCK, window)
    whole = Bounded(pe, cap=cap, window=window)
    blocks = []
    for first in range(0, queries, size):
        part = q[:, :, first : first + size]
        end = keys - queries + first + part.shape[2]
        begin = max(0, end - part.shape[2] - window + 1)
        only = pe if part.shape[2] == 1 and cap is None else whole
        blocks.append(_block(part, k, v, only, places, begin, end))
    return torch.cat(blocks, dim=2)


def _block(
    q: Tensor, k: Tensor, v: Tensor, pe: PositionalEncoding, places: Places, begin: int, end: int
) -> Float[Tensor, "b h q e"]:
    where = places.of_keys(begin, end).for_attention(pe, q.shape[2])
    return attention(q, k[:, :, begin:end], v[:, :, begin:end], pe, **where)
