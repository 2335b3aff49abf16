"""The Triton kernels for position terms evaluated on every cell, a block of rows at a time: FIRE, given positions, ...

Blocks keep the memory linear in the length. What a term is, and what becomes of its gradient, is the caller's business.
"""

from collections.abc import Callable, Iterator

from jaxtyping import Float
from torch import Tensor

from dape.ops.attention.fused.cells import CellTerms, RowBlock
from dape.ops.attention.triton_kernels.run import LOG2_E, ROWS, Attention, Terms, outputs

BLOCK_BYTES = 256 << 20
"""Of the terms of a block of rows."""


def row_blocks(attention: Attention) -> Iterator[RowBlock]:
    """Blocks whose terms, or their gradients (which every item has of its own), take about :data:`BLOCK_BYTES`."""
    batch, heads, queries, _ = attention.q.shape
    channels = heads + (attention.sizes.hidden if attention.mixes else 0)
    fit = BLOCK_BYTES // (4 * channels * max(1, batch) * attention.keys)
    rows = max(ROWS, fit // ROWS * ROWS)
    for first in range(0, queries, rows):
        end, offset = min(first + rows, queries), attention.causal_offset
        keys = attention.keys if offset is None else max(1, min(attention.keys, offset + end))
        yield RowBlock(first, end - first, keys)


def forward(
    attention: Attention, terms: Callable[[RowBlock], CellTerms], q: Tensor, v: Tensor
) -> tuple[Float[Tensor, "b h q e"], Float[Tensor, "b h q 2"]]:
    out, softmax = outputs(q, v)
    for block in row_blocks(attention):
        attention.forward(place(attention, terms(block), block), out, softmax, rows_of(block), block.keys)
    return out, softmax


def rows_of(block: RowBlock) -> slice:
    return slice(block.first, block.first + block.rows)


def place(attention: Attention, terms: CellTerms, block: RowBlock) -> Terms:
    """The terms of a block as the kernels read them."""

    def by_item(x: Float[Tensor, "c #i #r #k"], channels: int) -> Float[Tensor, "#i c r k"]:
        x = x.float().expand(channels, -1, block.rows, block.keys).transpose(0, 1)
        return x if x.stride(-1) == 1 else x.contiguous()

    static, pre = terms.static, None
    if terms.pre is not None:
        of_position = attention.of_position(terms.pre.float()) * LOG2_E
        static = of_position if static is None else static + of_position
        pre = by_item(terms.pre, attention.sizes.hidden)
    return Terms(tables=False, static=None if static is None else by_item(static, attention.sizes.heads), pre=pre)


def gradients(
    found: tuple[Float[Tensor, "b h r k"], Float[Tensor, "b D r k"] | None],
) -> tuple[Float[Tensor, "h b r k"], Float[Tensor, "D b r k"] | None]:
    """Of the terms of a block, channels first as they came."""
    d_static, d_pre = found
    return d_static.transpose(0, 1), None if d_pre is None else d_pre.transpose(0, 1)
