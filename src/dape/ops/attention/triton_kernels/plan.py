"""Sizes of the kernels for a call: what is padded to what, and how large a tile is. Does not import triton."""

from dataclasses import dataclass

import torch

BACKEND = "cuda" if torch.version.hip is None else "hip"
SMALLEST = 16
"""A product of matrices has at least this many terms in each sum."""
MAX_HEADS, MAX_WIDTH, MAX_HIDDEN = 32, 128, 64
MAX_ROW_BYTES = {"cuda": 4096, "hip": 2048}
"""Of all heads of a row, padded: two tiles of 16 rows must fit into shared memory at once."""
USUAL_ROW_BYTES = 2048


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of one call: what the kernels are compiled for, next to flags and dtypes."""

    heads: int
    group: int
    """Query heads that share a key head."""
    width: int
    values: int
    hidden: int
    item_bytes: int = 2

    @property
    def hp(self) -> int:
        return padded(self.heads)

    @property
    def dk(self) -> int:
        return padded(self.width)

    @property
    def dv(self) -> int:
        return padded(self.values)

    @property
    def dp(self) -> int:
        return padded(self.hidden)

    @property
    def row_bytes(self) -> int:
        return self.hp * max(self.dk, self.dv) * self.item_bytes

    @property
    def large(self) -> bool:
        """More than 16 heads of width 64 in half precision: a row takes more registers than usual."""
        return self.row_bytes > USUAL_ROW_BYTES

    @property
    def forward_keys(self) -> int:
        """Of a tile. Its rows are 16: the sums of values of all heads live in registers."""
        return 16 if self.large else 32

    @property
    def warps(self) -> int:
        return 16 if self.large else 8

    def constants(self) -> dict[str, int]:
        return {
            "HEADS": self.heads,
            "GROUP": self.group,
            "WIDTH": self.width,
            "VALUES": self.values,
            "HIDDEN": self.hidden,
            "HP": self.hp,
            "DK": self.dk,
            "DV": self.dv,
            "DP": self.dp,
        }


def padded(count: int) -> int:
    """The next power of two, at least :data:`SMALLEST`."""
    return max(SMALLEST, 1 << max(0, count - 1).bit_length())
