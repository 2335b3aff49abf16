"""The compiled kernel for position terms evaluated on every cell, a block of rows at a time: FIRE, given positions, ...

Blocks keep the memory linear in the length. What a term is, and what becomes of its gradient, is the caller's business.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Float
from torch import Tensor

from dape.ops.attention.fused import library
from dape.ops.attention.fused.run import Attention, Term, Terms, outputs

BLOCK_BYTES = 24 << 20
"""Of the terms of a block of rows."""
FEWEST_ROWS = 16


@dataclass(frozen=True)
class RowBlock:
    first: int
    rows: int
    keys: int
    """Keys 0 ... keys-1 are all that its rows see, and at least one."""


class CellTerms(Protocol):
    @property
    def static(self) -> Float[Tensor, "#h #i #r #k"] | None: ...

    @property
    def pre(self) -> Float[Tensor, "D #i #r #k"] | None: ...


def row_blocks(attention: Attention, *, items: int) -> Iterator[RowBlock]:
    """Blocks whose terms take about :data:`BLOCK_BYTES`, if ``items`` items have terms of their own."""
    heads, queries, keys = attention.q_shape[1], attention.q_shape[2], attention.k_shape[2]
    channels = heads + (0 if attention.mixer is None else len(attention.mixer.wa))
    fit = BLOCK_BYTES // (4 * channels * max(1, items) * keys)
    rows = max(FEWEST_ROWS, fit // FEWEST_ROWS * FEWEST_ROWS)
    for first in range(0, queries, rows):
        end = min(first + rows, queries)
        offset = attention.causal_offset
        yield RowBlock(first, end - first, keys if offset is None else max(1, min(keys, offset + end)))


def forward(
    attention: Attention, terms: Callable[[RowBlock], CellTerms], q: Tensor, v: Tensor, *, items: int
) -> tuple[Float[Tensor, "b h q e"], Float[Tensor, "b h q 2"]]:
    out, softmax = outputs(q, v)
    for block in row_blocks(attention, items=items):
        part = slice(block.first, block.first + block.rows)
        attention.forward(place(attention, terms(block), block), out[:, :, part], softmax[:, :, part], block.first)
    return out, softmax


def place(attention: Attention, terms: CellTerms, block: RowBlock) -> Terms:
    """The terms of a block as the kernel reads them."""
    static = library.zeros(1, 1, 1, 1) if terms.static is None else terms.static
    fixed = Term.by_cell(static.expand(attention.q_shape[1], -1, block.rows, block.keys), -math.inf)
    if terms.pre is None:
        return Terms(fixed, None)
    return Terms(fixed, Term.by_cell(terms.pre.expand(-1, -1, block.rows, block.keys), 0.0))
