"""The interface of engines, which compute attention for logits in closed form, forward and backward:

    logits = A + static + w2 . leaky(wa . A + pre),        static = B + b2, pre = wb . B + b1 (either may be absent)

Engines never hold a whole matrix. The *terms* are the parts of the logits without content, static and pre. There are
three kinds: tables over lags (:class:`LagTerms`), functions of one number per cell (:class:`RampTerms`), and terms
evaluated on cells (:class:`CellTerms`). Another kind needs a class here, and a branch in each engine. In addition,
static and pre may have a part that is a number of the query plus a number of the key (:class:`OfRowsAndKeys`), which
may depend on content.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dape.ops.attention.tiles import LOG2_E, Terms, TileTerms
from dape.positional.base import ScoreForm
from dape.positional.grid import Grid
from dape.positional.row_forms import RowForm

NO_ROW_KERNEL = "logits have no closed form that this engine knows"


@dataclass(frozen=True)
class Verdict:
    """Whether an engine can compute a call."""

    ok: bool
    words: str
    """The reason."""

    @classmethod
    def against(cls, why_not: str | None) -> "Verdict":
        return cls(why_not is None, why_not or "")


class OfRowsAndKeys(NamedTuple):
    """``rows[..., i] + keys[..., j]`` is added to static (the first channels, one for each head) and pre (the others).
    In float64, because the two may be large and nearly cancel. For one query the sum may be in ``keys`` in float32, and
    ``rows`` is 0."""

    rows: Float[Tensor, "#b c q"]
    keys: Float[Tensor, "#b c k"]

    def halves(self, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        """Rows and keys, each as two tensors of ``dtype`` whose sum is more precise than one."""
        rounded = [x.to(dtype) for x in self]
        return [(high, (x - high.to(x.dtype)).to(dtype)) for x, high in zip(self, rounded, strict=True)]


class CellsOfRowsAndKeys:
    """:class:`OfRowsAndKeys` for engines without support for them: evaluated on the cells of a block of rows."""

    def __init__(self, given: OfRowsAndKeys) -> None:
        self._given = given
        halves = given.halves(torch.float32)
        self._rows, self._keys = ([x.transpose(0, 1) for x in half] for half in halves)  # [c, #b, n]
        self._d_rows, self._d_keys = (torch.zeros_like(half[0]) for half in (self._rows, self._keys))

    @property
    def differ_by_item(self) -> bool:
        return max(len(x) for x in self._given) > 1

    def added(self, terms: TileTerms, heads: int, block: "RowBlock") -> TileTerms:
        halves = zip(self._rows, self._keys, strict=True)
        high, low = (r[..., block.part, None] + k[..., None, : block.keys] for r, k in halves)
        of_heads, of_hidden = (high + low).split([heads, len(high) - heads])
        static = of_heads * LOG2_E
        return replace(
            terms,
            static=static if terms.static is None else terms.static + static,
            pre=None if terms.pre is None else terms.pre + of_hidden,
        )

    def add_gradients(self, block: "RowBlock", d_logits: Tensor, d_hidden: Tensor | None) -> None:
        heads = len(d_logits)
        to_rows, to_keys = self._d_rows[..., block.part], self._d_keys[..., : block.keys]
        for x, part in ((d_logits, slice(heads)), (d_hidden, slice(heads, None))):
            if x is not None:
                to_rows[part] += x.sum(-1).sum_to_size(to_rows[part].shape)
                to_keys[part] += x.sum(-2).sum_to_size(to_keys[part].shape)

    def total(self) -> OfRowsAndKeys:
        return OfRowsAndKeys(self._d_rows.transpose(0, 1), self._d_keys.transpose(0, 1))


class Call(NamedTuple):
    """The inputs of attention, except for the terms."""

    q: Float[Tensor, "b h q d"]
    k: Float[Tensor, "b g k d"]
    v: Float[Tensor, "b g k e"]
    wa: Float[Tensor, "D h"] | None
    w2: Float[Tensor, "h D"] | None
    key_padding_mask: Bool[Tensor, "b k"] | None
    causal_offset: int | None
    """Row i sees the first causal_offset + i + 1 keys; None: all keys that the terms do not hide."""
    separable: OfRowsAndKeys | None = None
    sinks: Float[Tensor, " h"] | None = None
    """For the backward pass, whose output and softmax include them (``sinks.py``)."""

    @property
    def queries(self) -> int:
        return self.q.shape[2]

    @property
    def keys(self) -> int:
        return self.k.shape[2]

    @property
    def first_hidden(self) -> int | None:
        """The first entry of a table over lags that the causal mask hides."""
        return None if self.causal_offset is None else max(0, self.causal_offset + self.queries)


@dataclass(frozen=True)
class LagTerms:
    """Tables with ``queries + keys - 1`` entries, from the largest lag (the last query and key 0) downwards in steps of
    1. They do not include the causal mask."""

    static: Float[Tensor, "h n"] | None
    pre: Float[Tensor, "D n"] | None
    learns_static: bool = False
    """Whether the backward pass computes the gradient of ``static`` (ALiBi's has no parameters)."""


@dataclass(frozen=True)
class RampTerms:
    """Piecewise linear functions of ``table[lag] * rows[i]``, with a slope and a level in each piece p, which is above
    ``kinks[p - 1]`` and up to ``kinks[p]``. They do not include the causal mask."""

    static: Float[Tensor, "2 p h"]
    """Slopes and levels."""
    pre: Float[Tensor, "2 p D"] | None
    table: Float[Tensor, " n"]
    """Over lags, as in :class:`LagTerms`."""
    rows: Float[Tensor, "#b q"]
    kinks: Float[Tensor, " w"]
    """Ascending; one fewer than pieces."""


Tables = LagTerms | RampTerms
"""Terms for every lag, which serve all rows at once."""


@dataclass(frozen=True)
class RowBlock:
    first: int
    rows: int
    keys: int
    """The rows see no keys but 0 ... keys-1. At least 1."""

    @property
    def part(self) -> slice:
        return slice(self.first, self.first + self.rows)


class RowSums(Protocol):
    def add(self, terms: TileTerms, d_logits: Tensor, d_hidden: Tensor | None) -> None:
        """Add the gradients of the terms of a block of rows, channels first."""
        ...


class RowTerms(Protocol):
    """Terms evaluated on the cells of some rows of all items. :meth:`sums` collects their gradients."""

    @property
    def differ_by_item(self) -> bool:
        """Whether the terms differ between items of the batch."""
        ...

    def on_rows(self, block: RowBlock, *, backward: bool = False) -> TileTerms:
        """The terms of a block of rows, in order and without padding."""
        ...

    def sums(self) -> RowSums: ...


class CellTerms(RowTerms, Terms, Protocol):
    """Terms that every engine takes, on rows or on tiles."""

    def sums(self) -> Any: ...


class Found(NamedTuple):
    """The gradients; None for absent inputs."""

    q: Float[Tensor, "b h q d"]
    k: Float[Tensor, "b g k d"]
    v: Float[Tensor, "b g k e"]
    wa: Float[Tensor, "D h"] | None
    w2: Float[Tensor, "h D"] | None
    terms: Any
    """For tables: the gradients of static and pre, for ramps also of table and rows. For terms on cells: their sums."""
    separable: OfRowsAndKeys | None = None
    """For every item, or shared as the inputs are."""


class Engine(Protocol):
    name: str
    """Its name in ``attention(impl=...)``."""
    heads_beside: bool
    """Whether the output is [b, q, h, e] in memory, the layout of the next projection."""
    gradient_heads_beside: bool
    """The same for the gradients of q, k and v."""
    takes_ramps: bool
    """Whether it supports :class:`RampTerms`. Otherwise these encodings are evaluated on cells."""
    takes_separable: bool
    """Whether it knows :class:`OfRowsAndKeys` beside tables. Beside terms on cells it always gets them."""

    takes_sinks: bool
    """Whether its backward pass takes sums that include sinks."""

    def serves(self, device: torch.device) -> bool:
        """Whether ``auto`` considers it on this device. Engines are asked in the order of the list."""
        ...

    def judge(self, q: Tensor, k: Tensor, v: Tensor, grid: Grid, form: ScoreForm, *, tables: bool) -> Verdict:
        """Whether it can compute a call correctly, with tables over lags or terms on cells."""
        ...

    def judge_rows(self, q: Tensor, k: Tensor, v: Tensor, grid: Grid, form: RowForm) -> Verdict:
        """Whether it has a kernel for this form that can compute the call."""
        ...

    def forward(self, call: Call, terms: Any) -> tuple[Tensor, Tensor]:
        """The output [b, h, q, e], and [b, h, q, 2]: for each row the largest logit (base 2) and the sum of the weights
        relative to it. Terms are :class:`Tables`, :class:`CellTerms`, or those of a row form that ``judge_rows``
        allows."""
        ...

    def backward(self, call: Call, terms: Any, grad: Tensor, out: Tensor, softmax: Tensor) -> Found: ...


def empty_outputs(
    q: Tensor, v: Tensor, dtype: torch.dtype = torch.float32
) -> tuple[Float[Tensor, "b h q e"], Float[Tensor, "b h q 2"]]:
    """Tensors for the output, which is [b, q, h, e] in memory for the next projection, and for the largest logit
    (base 2) and the sum of the weights of each row."""
    batch, heads, queries, _ = q.shape
    out = q.new_empty(batch, queries, heads, v.shape[-1], dtype=dtype).transpose(1, 2)
    return out, q.new_empty(batch, heads, queries, 2, dtype=dtype)


class KernelEngine(ABC):
    """An engine whose kernel reads terms from memory: tables for all rows at once, or cells of one block of rows at a
    time, so that memory stays linear in the length."""

    block_bytes: int
    """Bytes that the terms of a block of rows may take."""
    fewest_rows: int
    """Blocks have a multiple of this number of rows."""
    takes_separable = False
    gradients_by_item = False
    """Whether gradients of terms take memory for each item even if the items share the terms."""

    @abstractmethod
    def attention(self, call: Call) -> Any:
        """The inputs in the kernel's layout, with methods ``forward(terms, out, softmax, block)`` and ``backward(grad,
        out, softmax)``."""

    @abstractmethod
    def tables(self, attention: Any, call: Call, terms: Any) -> Any:
        """Tables as the kernel reads them."""

    @abstractmethod
    def cells(self, attention: Any, call: Call, terms: TileTerms, block: RowBlock) -> Any:
        """The terms of a block of rows as the kernel reads them."""

    def forward(self, call: Call, terms: Tables | RowTerms) -> tuple[Tensor, Tensor]:
        attention, (out, softmax) = self.attention(call), empty_outputs(call.q, call.v)
        if isinstance(terms, Tables):
            attention.forward(self.tables(attention, call, terms), out, softmax, _all_rows(call))
            return out, softmax
        separable = self._on_cells(call)
        for block in self._blocks(call, terms, separable):
            own = terms.on_rows(block)
            own = own if separable is None else separable.added(own, call.q.shape[1], block)
            attention.forward(self.cells(attention, call, own, block), out, softmax, block)
        return out, softmax

    def _on_cells(self, call: Call) -> CellsOfRowsAndKeys | None:
        """Separable terms on cells, if the kernel does not know them."""
        return None if call.separable is None or self.takes_separable else CellsOfRowsAndKeys(call.separable)

    def backward(self, call: Call, terms: Tables | RowTerms, grad: Tensor, out: Tensor, softmax: Tensor) -> Found:
        attention, separable = self.attention(call), self._on_cells(call)
        found = attention.backward(grad, out, softmax)
        if isinstance(terms, Tables):
            of_terms = found.rows(self.tables(attention, call, terms), _all_rows(call))
        else:
            of_terms = terms.sums()
            for block in self._blocks(call, terms, separable):
                own = terms.on_rows(block, backward=True)
                own = own if separable is None else separable.added(own, call.q.shape[1], block)
                gradients = found.rows(self.cells(attention, call, own, block), block)
                of_terms.add(own, *gradients)
                if separable is not None:
                    separable.add_gradients(block, *gradients)
        d_wa, d_w2 = (None, None) if call.wa is None else (found.d_wa, found.d_w2)
        of_separable = separable.total() if separable else found.d_separable if call.separable else None
        return Found(found.d_q, found.d_k, found.d_v, d_wa, d_w2, of_terms, of_separable)

    def _blocks(self, call: Call, terms: RowTerms, separable: CellsOfRowsAndKeys | None) -> Iterator[RowBlock]:
        batch, heads, queries, _ = call.q.shape
        differ = terms.differ_by_item or (separable is not None and separable.differ_by_item)
        items = batch if self.gradients_by_item or differ else 1
        channels = heads + (0 if call.wa is None else len(call.wa))
        fit = self.block_bytes // (4 * channels * max(1, items) * call.keys)
        rows = max(self.fewest_rows, fit // self.fewest_rows * self.fewest_rows)
        for first in range(0, queries, rows):
            end, offset = min(first + rows, queries), call.causal_offset
            yield RowBlock(first, end - first, call.keys if offset is None else max(1, min(call.keys, offset + end)))


def _all_rows(call: Call) -> RowBlock:
    return RowBlock(0, call.queries, call.keys)
