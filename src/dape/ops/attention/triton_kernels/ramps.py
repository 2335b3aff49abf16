# Type checkers do not understand kernel code, which triton compiles with types of its own.
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false, reportReturnType=false
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false, reportMissingImports=false
"""Position terms that are piecewise linear functions of u = table[lag] * of_rows[row]; see ``kernels.py``."""

import triton
import triton.language as tl

from dape.ops.attention.triton_kernels.products import LOG2_E, cells, dot, turn


@triton.jit
def entries(table, i0, j0, queries, keys, start, M: tl.constexpr, N: tl.constexpr):
    """The entries of a table of one channel at the lags of the cells, [M * N, 1]."""
    cell = tl.arange(0, M * N)[:, None]
    i, j = i0 + cell // N, j0 + cell % N
    return tl.load(table + (start - i + j), mask=(i < queries) & (j < keys), other=0.0)


@triton.jit
def of_each_row(of_rows, item, i0, queries, of_rows_i, M: tl.constexpr, N: tl.constexpr):
    """The number of each cell's row, [M * N, 1]."""
    i = i0 + tl.arange(0, M * N)[:, None] // N
    return tl.load(of_rows + item.to(tl.int64) * of_rows_i + i, mask=i < queries, other=0.0)


@triton.jit
def place_of_cells(table, of_rows, kinks, item, i0, j0, queries, keys, start, of_rows_i, KINKS: tl.constexpr,
                   M: tl.constexpr, N: tl.constexpr):  # fmt: skip
    """u of each cell, and the index of its piece, [M * N, 1]."""
    if KINKS:
        along = entries(table, i0, j0, queries, keys, start, M, N)
        along *= of_each_row(of_rows, item, i0, queries, of_rows_i, M, N)
        piece = tl.zeros((M * N, 1), tl.int32)
        for n in range(KINKS):
            piece += (along > tl.load(kinks + n)).to(tl.int32)
    else:
        along, piece = item, item  # never read
    return along, piece


@triton.jit
def slopes_of(x, piece, CHANNELS: tl.constexpr):
    """The slopes of each cell's piece, [M * N, CHANNELS]."""
    return tl.load(x + piece * (2 * CHANNELS) + tl.arange(0, CHANNELS)[None, :])


@triton.jit
def on_pieces(x, along, piece, CHANNELS: tl.constexpr):
    """The function at each cell, [M * N, CHANNELS]."""
    return slopes_of(x, piece, CHANNELS) * along + slopes_of(x + CHANNELS, piece, CHANNELS)


@triton.jit
def gradient_along(d_logits, d_z, static, pre, piece, HP: tl.constexpr, DP: tl.constexpr, M: tl.constexpr,
                   N: tl.constexpr, MIX: tl.constexpr):  # fmt: skip
    """The gradient of u, [M * N, 1]."""
    found = tl.sum(cells(d_logits, HP, M, N) * slopes_of(static, piece, HP), axis=1, keep_dims=True) * (1 / LOG2_E)
    if MIX:
        found += tl.sum(d_z * slopes_of(pre, piece, DP), axis=1, keep_dims=True)
    return found


@triton.jit
def sums_in_pieces(within, x, CELLS: tl.constexpr, PIECES: tl.constexpr, CHANNELS: tl.constexpr, STORE: tl.constexpr,
                   TYPE: tl.constexpr):  # fmt: skip
    """Sums of x, [cell, channel], over the cells of each piece. Gradients nearly cancel in these sums, so in half
    precision x is split into a rounded part and its rounding error."""
    PARTS: tl.constexpr = 8  # of the cells, for one product per warp instead of a single long product
    K: tl.constexpr = CELLS // PARTS
    turned = turn(tl.reshape(within, (PARTS, K, PIECES)))
    found = dot(turned, tl.reshape(x, (PARTS, K, CHANNELS)), STORE, TYPE)
    if tl.float32 != STORE:
        rest = x - x.to(STORE).to(tl.float32)
        found += dot(turned, tl.reshape(rest, (PARTS, K, CHANNELS)), STORE, TYPE)
    return tl.sum(found, axis=0)
