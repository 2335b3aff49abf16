"""Attention whose position terms are tables over lags: memory linear in the length, nothing copied.

Tables run from the largest lag, ``offset + queries - 1``, downwards in steps of 1, with ``queries + keys - 1`` entries.
The rows of a tile being reversed, row r and key j have the table index ``start + r + j``: a table is applied as an
overlapping view (strides 1, 1), the causal mask is simply -inf in the table at negative lags, and the gradient of a
table entry is a sum over an anti-diagonal, again read through a view.

An opaque operator for torch.compile, so that one graph serves all lengths; autograd carries the gradients of the tables
on to the parameters they were made from.
"""

import math
from types import ModuleType

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dape.ops.attention.fused import lags as fused
from dape.ops.attention.lag_call import LagCall
from dape.ops.attention.tiles import LOG2_E, Call, Engine, TermSums, TileTerms, join_parts, run_backward, run_forward
from dape.ops.attention.tiling import Tile
from dape.positional.base import accumulation_dtype


def lag_attention(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    v: Float[Tensor, "b g k e"],
    *,
    static: Float[Tensor, "h n"] | None,
    wa: Float[Tensor, "D h"] | None = None,
    pre: Float[Tensor, "D n"] | None = None,
    w2: Float[Tensor, "h D"] | None = None,
    key_padding_mask: Bool[Tensor, "b k"] | None,
    offset: int,
    causal: bool,
    engine: Engine = "tiles",
) -> Float[Tensor, "b h q e"]:
    """``A + static[lag] + w2 . leaky(wa . A + pre[lag])``; differentiable in every floating-point input.

    ``engine``: the tile engine, the C++ kernel or the Triton kernels.
    """
    # The operator keeps its output as computed: the backward pass takes a difference in which rounding would show.
    return _forward(q, k, v, static, wa, pre, w2, key_padding_mask, offset, causal, engine)[0].to(q.dtype)


def _module_of(engine: str) -> ModuleType:
    if engine == "cpp":
        return fused
    from dape.ops.attention.triton_kernels import lags

    return lags


@torch.library.custom_op("dape::lag_attention", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    static: Tensor | None,
    wa: Tensor | None,
    pre: Tensor | None,
    w2: Tensor | None,
    key_padding_mask: Tensor | None,
    offset: int,
    causal: bool,
    engine: str,
) -> tuple[Tensor, Tensor]:
    given = LagCall(q, k, v, static, wa, pre, w2, key_padding_mask, offset, causal, False)
    if engine != "tiles":
        return _module_of(engine).forward(given)
    call, terms = _for_tiles(given)
    return run_forward(call, terms)


@_forward.register_fake
def _(q, k, v, static, wa, pre, w2, key_padding_mask, offset, causal, engine):
    dtype = accumulation_dtype(q.dtype)
    batch, heads, queries, _ = q.shape
    # See run_forward() of tiles, and outputs() of fused.run and triton_kernels.run.
    softmax = q.new_empty(batch, heads, queries, 2, dtype=dtype)
    if engine != "tiles":
        return q.new_empty(batch, queries, heads, v.shape[-1], dtype=dtype).transpose(1, 2), softmax
    return q.new_empty(*q.shape[:-1], v.shape[-1], dtype=dtype), softmax


@torch.library.custom_op("dape::lag_attention_backward", mutates_args=())
def _backward(
    grad: Tensor,
    out: Tensor,
    softmax: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    static: Tensor | None,
    wa: Tensor | None,
    pre: Tensor | None,
    w2: Tensor | None,
    key_padding_mask: Tensor | None,
    offset: int,
    causal: bool,
    engine: str,
    learns_static: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, static, wa, pre, w2; an empty tensor stands for an absent input's, and for that of a static
    table nobody asks for (ALiBi's has nothing to learn)."""
    inputs = (q, k, v, static, wa, pre, w2)
    compute = _by_tiles if engine == "tiles" else _module_of(engine).backward
    found = compute(grad, out, softmax, LagCall(*inputs, key_padding_mask, offset, causal, learns_static))
    wanted = (*inputs[:3], static if learns_static else None, *inputs[4:])
    d_q, d_k, d_v, d_static, d_wa, d_pre, d_w2 = (
        q.new_empty(0) if x is None or t is None else t.to(x.dtype) for t, x in zip(found, wanted, strict=True)
    )
    d_q, d_k, d_v = (_as_announced(x, engine) for x in (d_q, d_k, d_v))
    return d_q, d_k, d_v, d_static.contiguous(), d_wa.contiguous(), d_pre.contiguous(), d_w2.contiguous()


def _as_announced(x: Float[Tensor, "b h t d"], engine: str) -> Float[Tensor, "b h t d"]:
    """A layout that can be known beforehand: from the C++ kernel heads beside each other, as the projection that they
    come from wants their gradients."""
    return x.transpose(1, 2).contiguous().transpose(1, 2) if engine == "cpp" else x.contiguous()


def _by_tiles(grad: Tensor, out: Tensor, softmax: Tensor, given: LagCall) -> tuple[Tensor | None, ...]:
    call, terms = _for_tiles(given)
    dq, sums = run_backward(call, terms, grad, out, softmax)
    assert isinstance(sums.terms, _TableSums)
    d_wa, d_w2 = (None, None) if sums.mixer is None else (sums.mixer.wa, sums.mixer.w2)
    return dq, join_parts(sums.dk), join_parts(sums.dv), sums.terms.static, d_wa, sums.terms.pre, d_w2


def _for_tiles(given: LagCall) -> tuple[Call, "_LagTerms"]:
    call = Call(given.q, given.k, given.v, given.wa, given.w2, causal_offset=given.causal_offset)
    terms = _LagTerms(call, given.static, given.pre, given.key_padding_mask, given.offset, given.causal)
    return call, terms


@_backward.register_fake
def _(grad, out, softmax, q, k, v, static, wa, pre, w2, key_padding_mask, offset, causal, engine, learns_static):
    learned = (static if learns_static else None, wa, pre, w2)
    tables = (q.new_empty(0) if t is None else t.new_empty(t.shape) for t in learned)
    return (*(_as_announced(x.new_empty(x.shape), engine) for x in (q, k, v)), *tables)


def _setup_context(ctx, inputs, output) -> None:
    *tensors, ctx.offset, ctx.causal, ctx.engine = inputs
    ctx.save_for_backward(*output, *tensors)
    ctx.set_materialize_grads(False)


_STATIC = 3  # of the arguments


def _autograd_backward(ctx, grad, _grad_softmax):
    out, softmax, *tensors = ctx.saved_tensors
    if grad is None:
        return (None,) * (len(tensors) + 3)
    asked = ctx.needs_input_grad[: len(tensors) - 1]
    grads = _backward(grad, out, softmax, *tensors, ctx.offset, ctx.causal, ctx.engine, asked[_STATIC])
    present = [g if needed else None for g, needed in zip(grads, asked, strict=True)]
    return (*present, None, None, None, None)


_forward.register_autograd(_autograd_backward, setup_context=_setup_context)


class _LagTerms:
    shared_by_items = False  # views of tables: nothing to save

    def __init__(
        self,
        call: Call,
        static: Tensor | None,
        pre: Tensor | None,
        key_padding_mask: Tensor | None,
        offset: int,
        causal: bool,
    ) -> None:
        self.call, self.offset, self.causal = call, offset, causal
        self.static = static
        self.pre = None if pre is None else pre.to(call.dtype).contiguous()
        self.table = self._logit_table()
        self.padding = None
        if key_padding_mask is not None:
            zero = torch.zeros(key_padding_mask.shape, dtype=call.dtype, device=call.device)
            self.padding = zero.masked_fill_(key_padding_mask, -math.inf).unsqueeze(1)

    def _logit_table(self) -> Float[Tensor, "h n"] | None:
        """The static table in base 2, -inf where the causal mask hides; None if neither exists."""
        call = self.call
        if self.static is not None:
            table = (self.static.to(call.dtype) * LOG2_E).contiguous()
        elif self.causal:
            table = torch.zeros(1, call.queries + call.keys - 1, dtype=call.dtype, device=call.device)
        else:
            return None
        if self.causal:
            table[:, max(0, self.offset + call.queries) :] = -math.inf
        return table

    def start(self, tile: Tile) -> int:
        """Table index of the tile's first cell: its last row against key 0."""
        return self.call.queries - tile.i1

    def view(self, table: Float[Tensor, "c n"], tile: Tile) -> Float[Tensor, "c 1 r k"]:
        """The table on every cell of the tile, without a copy."""
        where = table.storage_offset() + self.start(tile)
        return table.as_strided((len(table), 1, tile.rows, tile.keys), (table.stride(0), 0, 1, 1), where)

    def on(self, tile: Tile, *, backward: bool = False) -> TileTerms:
        static = None if self.table is None else self.view(self.table, tile)
        if self.padding is not None:
            padding = self.padding[tile.b0 : tile.b1, :, : tile.keys]
            static = padding if static is None else static + padding
        return TileTerms(static=static, pre=None if self.pre is None else self.view(self.pre, tile))

    def sums(self) -> "_TableSums":
        return _TableSums(self)


class _TableSums:
    def __init__(self, terms: _LagTerms) -> None:
        self._terms = terms

        def zeros(table: Tensor | None) -> Tensor | None:
            return None if table is None else torch.zeros(table.shape, dtype=terms.call.dtype, device=table.device)

        self.static, self.pre = zeros(terms.static), zeros(terms.pre)

    def add_tile(self, tile: Tile, terms: TileTerms, d_logits: Tensor, d_hidden: Tensor | None) -> None:
        for total, x in ((self.static, d_logits), (self.pre, d_hidden)):
            if total is not None and x is not None:
                self._add_diagonals(total, x, tile)

    def _add_diagonals(self, total: Float[Tensor, "c n"], x: Float[Tensor, "c i r k"], tile: Tile) -> None:
        x = x.squeeze(1) if tile.items == 1 else x.sum(1)
        # A causal tile whose keys reach its last row's own or further is zero beyond its main anti-diagonal.
        corner_hidden = self._terms.causal and tile.keys >= self._terms.offset + tile.i1
        sums = _diagonals_of_triangle(x) if corner_hidden else _diagonals(x)
        start = self._terms.start(tile)
        total[:, start : start + sums.shape[1]].add_(sums)

    def add_(self, other: TermSums) -> None:
        assert isinstance(other, _TableSums)
        for mine, theirs in ((self.static, other.static), (self.pre, other.pre)):
            if mine is not None and theirs is not None:
                mine.add_(theirs)


def _diagonals(x: Float[Tensor, "c r k"]) -> Float[Tensor, "c n"]:
    """Sums over r + j = 0 ... r + k - 2: with rows one longer than the number of sums, shifting is a matter of view."""
    channels, rows, keys = x.shape
    padded = torch.nn.functional.pad(x, (0, rows)).flatten(1)
    return padded[:, : rows * (rows + keys - 1)].view(channels, rows, -1).sum(1)


def _diagonals_of_triangle(x: Float[Tensor, "c r k"]) -> Float[Tensor, "c k"]:
    """The same for x that is 0 where r + j >= k, without padding: read rows of length k - 1, in which column c holds
    r + j = c, except that the last diagonal k - 1 wraps onto column 0."""
    channels, rows, keys = x.shape
    if keys == 1:
        return x.sum(1)
    channel, start = x.stride(0), x.storage_offset()
    sums = x.as_strided((channels, rows, keys - 1), (channel, keys - 1, 1), start).sum(1)
    sums[:, 0] = x[:, 0, 0]
    last = x.as_strided((channels, rows), (channel, keys - 1), start + keys - 1).sum(1)
    return torch.cat([sums, last.unsqueeze(1)], dim=1)
