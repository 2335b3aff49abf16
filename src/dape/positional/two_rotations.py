"""Two rotations, chosen by the lag, so that a model of short texts reads no lag beyond its training; without training.

rerope (Su, 2023):              lag i - j below ``window``, the constant lag ``window`` from there on
self-extend (Jin et al., 2024): lag i - j below ``window`` = w,   i // g - j // g + w - w // g from there on

The default window is half the training length L. The default ``group`` g of self-extend is ceil((T - 1 - w) / (L - 1 -
w)) for a text of T tokens, the smallest that guarantees lags below L; it is 1 up to L tokens. Both compute scores from
queries and keys without rotation. They are defined for lags of at least 0 only, so they are causal.
"""

import math
from abc import abstractmethod
from typing import Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dape.positional.base import AttentionDims, PositionalEncoding, require_count, share_heads
from dape.positional.grid import Grid
from dape.positional.rope import Rope, RopeOptions


class WindowOptions(RopeOptions, total=False):
    window: int | None


class TwoRotations(PositionalEncoding):
    supports_bidirectional = False

    def __init__(
        self,
        dims: AttentionDims,
        *,
        window: int | None = None,
        base: float = 10000.0,
        interleaved: bool = False,
        fraction: float = 1.0,
    ) -> None:
        super().__init__(dims)
        self.rope = Rope(dims, base=base, interleaved=interleaved, fraction=fraction)
        self.window = max(1, dims.train_length // 2) if window is None else require_count("window", window)

    @abstractmethod
    def far_positions(self, grid: Grid) -> tuple[Int[Tensor, "*b q"], Int[Tensor, "*b k"]]:
        """The positions of queries and keys for lags from the window on."""

    def logits(
        self, scores: Float[Tensor, "*b h q k"], q: Float[Tensor, "*b h q d"], k: Float[Tensor, "*b g k d"], grid: Grid
    ) -> Float[Tensor, "*b h q k"]:
        if not grid.k_index.numel():
            return scores
        q, k = q.to(scores.dtype), k.to(scores.dtype)
        near = self._scores(q, k, grid.q_pos, grid.k_pos)
        far = self._scores(q, k, *self.far_positions(grid))
        is_near = grid.q_pos.unsqueeze(-1) - grid.k_pos.unsqueeze(-2) < self.window
        return torch.where(is_near.unsqueeze(-3), near, far)

    def _scores(
        self,
        q: Float[Tensor, "*b h q d"],
        k: Float[Tensor, "*b g k d"],
        q_pos: Int[Tensor, "*c q"],
        k_pos: Int[Tensor, "*c k"],
    ) -> Float[Tensor, "*b h q k"]:
        keys = share_heads(self.rope.turned_at(k, k_pos), self.dims.num_heads)
        return self.rope.turned_at(q / math.sqrt(self.dims.head_dim), q_pos) @ keys.transpose(-1, -2)


class ReRope(TwoRotations):
    def far_positions(self, grid: Grid) -> tuple[Int[Tensor, "*b q"], Int[Tensor, "*b k"]]:
        return torch.full_like(grid.q_pos, self.window), torch.zeros_like(grid.k_pos)


class SelfExtend(TwoRotations):
    absolute = True

    def __init__(self, dims: AttentionDims, *, group: int | None = None, **options: Unpack[WindowOptions]) -> None:
        super().__init__(dims, **options)
        self.group = None if group is None else require_count("group", group)
        self.reads_hidden_columns = group is None  # the group depends on the length of the whole text
        if group is None and self.window > dims.train_length - 2:
            raise ValueError(
                f"window={self.window} leaves no lag for groups: it must be at most {dims.train_length - 2}, two below "
                "the training length, unless `group` is given"
            )

    def far_positions(self, grid: Grid) -> tuple[Int[Tensor, "*b q"], Int[Tensor, "*b k"]]:
        (q_group, k_group), window = (self._groups(longest) for longest in grid.longest()), self.window
        return grid.q_pos // q_group + window - window // q_group, grid.k_pos // k_group

    def _groups(self, longest: Int[Tensor, "*b #t"]) -> Int[Tensor, "*b #t"]:
        if self.group is not None:
            return torch.full_like(longest, self.group)
        room = self.dims.train_length - 1 - self.window
        return ((longest - self.window + room - 1) // room).clamp(min=1)
