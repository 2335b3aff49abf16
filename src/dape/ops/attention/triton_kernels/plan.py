"""Sizes of the kernels for a call: padded sizes and the size of a tile. Does not import triton."""

import math
from dataclasses import dataclass
from typing import Literal

import torch

SMALLEST = 16
"""The least size of each axis of a matrix product."""
MAX_HEADS, MAX_WIDTH, MAX_HIDDEN = 32, 128, 64
USUAL_ROW_BYTES = 2048
"""Bytes of a row of all heads, padded: 16 of width 64 in half precision. Larger rows are processed in slices."""
Gpu = Literal["large", "small", "amd"]
LARGE_SHARED, SMALL_SHARED = 166_912, 101_376
"""Bytes of shared memory for a program on an A100, and on a GeForce, A10 or L4."""
ROOM: dict[Gpu, int] = {"large": 4096, "small": 2048, "amd": 2048}
"""Largest bytes of a row of all heads, so that 16 rows fit into shared memory beside everything else."""
MAX_SUMS = 2048
"""Largest number of sums per row of all heads: they are in registers."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of a call for which kernels are compiled. Flags and dtypes are not included."""

    heads: int
    group: int
    """Query heads that share a key head."""
    width: int
    values: int
    hidden: int
    item_bytes: int = 2
    gpu: Gpu = "large"

    @property
    def hp(self) -> int:
        return padded(self.heads)

    @property
    def dp(self) -> int:
        return padded(self.hidden)

    @property
    def row_bytes(self) -> int:
        return self.hp * padded(max(self.width, self.values)) * self.item_bytes

    @property
    def large(self) -> bool:
        """Whether head widths are processed in slices, several programs share the columns of a result, and programs
        have more warps."""
        return self.row_bytes > USUAL_ROW_BYTES

    @property
    def deep(self) -> bool:
        """Whether the hidden units of f take more memory than heads: more than 32 units in float32."""
        return self.dp * self.item_bytes > 128

    @property
    def fits(self) -> bool:
        """Whether the kernels fit: in float32 at most 16 heads on small and AMD GPUs, on small GPUs at most 32 hidden
        units."""
        return self._columns(ROOM[self.gpu] // 2) >= SMALLEST and not (self.gpu == "small" and self.dp > 32)

    def piece(self, width: int) -> int:
        """The head width of a slice: the columns of both operands in one product."""
        return min(padded(width), self._columns(ROOM[self.gpu] // 2)) if self.large else padded(width)

    def share(self, width: int) -> int:
        """The columns of a result that one program computes."""
        fit = min(self._columns(ROOM[self.gpu]), MAX_SUMS // self.hp)
        return min(padded(width), fit) if self.large else padded(width)

    def shares(self, width: int) -> int:
        return math.ceil(width / self.share(width))

    def _columns(self, row_bytes: int) -> int:
        return row_bytes // (self.hp * self.item_bytes)

    @property
    def forward_keys(self) -> int:
        """Keys of a tile in the forward pass. Tiles have only 16 rows, because the sums of values of all heads are in
        registers."""
        return 16 if self.large or self.gpu == "small" or self.deep else 32

    @property
    def one_at_a_time(self) -> bool:
        """Whether each gradient has its own launch, which computes the weights again, instead of two in one launch."""
        return self.large or self.gpu != "large" or self.dp > 32

    @property
    def warps(self) -> int:
        """Products in float32 need many registers: at 32 heads, the compiler spilled them with half as many warps. In
        half precision it spills with twice as many. 1024 threads (32 warps) are the maximum."""
        if self.item_bytes == 4 and self.gpu != "amd" and (self.large or self.deep):
            return 32
        return 16 if self.large else 8

    def constants(self) -> dict[str, int]:
        return {
            "HEADS": self.heads,
            "GROUP": self.group,
            "WIDTH": self.width,
            "VALUES": self.values,
            "HIDDEN": self.hidden,
            "HP": self.hp,
            "PK": self.piece(self.width),
            "PV": self.piece(self.values),
            "SK": self.share(self.width),
            "SV": self.share(self.values),
            "DP": self.dp,
        }


def padded(count: int) -> int:
    """The next power of two, at least :data:`SMALLEST`."""
    return max(SMALLEST, 1 << max(0, count - 1).bit_length())


@torch.compiler.assume_constant_result  # not traced
def gpu_of(device: torch.device) -> Gpu | None:
    """The kind of GPU, or None if it has too little shared memory for the kernels."""
    if torch.version.hip is not None:
        return "amd"
    if device.type != "cuda":
        return "large"  # interpreted
    shared = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    return "large" if shared >= LARGE_SHARED else "small" if shared >= SMALL_SHARED else None
