"""Attention for logits that are tables over lags,

    logits = A + static[lag] + w2 . leaky(wa . A + pre[lag]),

computed tile by tile, forward and backward, with memory linear in the sequence length. README.md in this folder derives
the backward pass and explains the layout; in short:

* a tile holds all heads of some query rows *in reversed order* against the keys they see, as [item, head, row, key];
* row r and key j of a tile then have the table index ``start + r + j``, so a table is applied as an overlapping view
  (strides 1, 1) without being copied, and the causal mask is simply -inf in the table at negative lags;
* gradients of a table are sums over anti-diagonals, again read through a view (of row length keys - 1);
* logits are kept in base 2 (log2 e is folded into the last product), exp2 being cheaper than exp.

Tables run from the largest lag, ``offset + queries - 1``, downwards in steps of 1, ``queries + keys - 1`` entries.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dape.ops.attention.parallel import balanced_shares, run_shares
from dape.ops.attention.tiling import Tile, plan_tiles
from dape.positional.base import LEAKY_SLOPE, LagForm, accumulation_dtype

LOG2_E = math.log2(math.e)
MAX_BACKWARD_WORKERS = 16
"""Each worker of the backward pass sums its own gradients of k and v: more would cost more memory than they save time."""
_leaky_backward = torch.ops.aten.leaky_relu_backward.grad_input


def lag_attention(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    v: Float[Tensor, "b g k e"],
    form: LagForm,
    *,
    offset: int,
    causal: bool,
    key_padding_mask: Bool[Tensor, "b k"] | None,
) -> Float[Tensor, "b h q e"]:
    """Differentiable in q, k, v and in every tensor of the form."""
    mix = form.mix
    wa, pre, w2 = (mix.wa, mix.pre, mix.w2) if mix is not None else (None, None, None)
    out, _ = _forward(q, k, v, form.static, wa, pre, w2, key_padding_mask, offset, causal)
    return out


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
) -> tuple[Tensor, Tensor]:
    """Output, and per row the base-2 logarithm of the softmax denominator. An opaque operator for torch.compile, so
    that one graph serves all lengths."""
    call = _Call(q, k, v, static, wa, pre, w2, key_padding_mask, offset, causal)
    out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:-1], dtype=call.dtype, device=q.device)

    def work(tiles: Sequence[Tile]) -> None:
        scratch = _Scratch(call, tiles)
        for tile in tiles:
            if tile.keys == 0:
                _rows(out, tile).zero_()
                _rows(lse, tile).zero_()
                continue
            logits = call.logits(tile, scratch)
            top = logits.amax(-1, keepdim=True).clamp_(min=torch.finfo(call.dtype).min)
            weights = logits.sub_(top).exp2_()
            # A row that sees nothing sums to 0; its output must be 0 and not 0 / 0.
            total = weights.sum(-1, keepdim=True).clamp_(min=torch.finfo(call.dtype).tiny)
            _rows(out, tile).copy_(call.times_values(weights, tile).div_(total).flip(2))
            _rows(lse, tile).copy_((top + total.log2()).squeeze(-1).flip(2))

    run_shares(work, call.shares())
    return out, lse


@_forward.register_fake
def _(q, k, v, static, wa, pre, w2, key_padding_mask, offset, causal):
    lse_dtype = accumulation_dtype(q.dtype)
    return q.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(q.shape[:-1], dtype=lse_dtype)


@torch.library.custom_op("dape::lag_attention_backward", mutates_args=())
def _backward(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, static, wa, pre, w2; an empty tensor stands for an absent input's."""
    call = _Call(q, k, v, static, wa, pre, w2, key_padding_mask, offset, causal)
    grad = grad.to(call.dtype)
    delta = (grad * out.to(call.dtype)).sum(-1)
    dq = torch.empty_like(call.q)

    def work(tiles: Sequence[Tile]) -> _Sums:
        scratch, sums = _Scratch(call, tiles, backward=True), _Sums(call)
        for tile in tiles:
            if tile.keys == 0:
                _rows(dq, tile).zero_()
                continue
            _backward_tile(call, tile, scratch, sums, grad, delta, lse, dq)
        return sums

    first, *others = run_shares(work, call.shares(backward=True))
    for other in others:
        first.add_(other)
    return (dq.to(q.dtype), first.dk.to(k.dtype), first.dv.to(v.dtype), first.static, first.wa, first.pre, first.w2)


@_backward.register_fake
def _(grad, out, lse, q, k, v, static, wa, pre, w2, key_padding_mask, offset, causal):
    tables = (q.new_empty(0) if t is None else torch.empty_like(t) for t in (static, wa, pre, w2))
    return (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), *tables)


def _setup_context(ctx, inputs, output) -> None:
    *tensors, ctx.offset, ctx.causal = inputs
    ctx.save_for_backward(*output, *tensors)
    ctx.set_materialize_grads(False)


def _autograd_backward(ctx, grad, _grad_lse):
    out, lse, *tensors = ctx.saved_tensors
    if grad is None:
        return (None,) * (len(tensors) + 2)
    grads = _backward(grad, out, lse, *tensors, ctx.offset, ctx.causal)
    present = [None if t is None else g for g, t in zip(grads, tensors[:-1], strict=True)]
    return (*present, None, None, None)


_forward.register_autograd(_autograd_backward, setup_context=_setup_context)


class _Call:
    """The inputs of one call in the precision of the computation, and what a tile is made of."""

    def __init__(self, q, k, v, static, wa, pre, w2, key_padding_mask, offset, causal) -> None:
        self.dtype = accumulation_dtype(q.dtype)
        self.q, self.k, self.v = (x.to(self.dtype).contiguous() for x in (q, k, v))
        self.batch, self.heads, self.queries, width = q.shape
        self.kv_heads, self.keys = k.shape[1:3]
        self.scale = 1 / math.sqrt(width)
        self.offset, self.causal = offset, causal
        self.wa, self.w2 = (None if w is None else w.to(self.dtype).contiguous() for w in (wa, w2))
        self.pre = None if pre is None else pre.to(self.dtype).contiguous()
        self.hidden = 0 if wa is None else wa.shape[0]
        self.static = static
        self.table = self._logit_table(static, q.device)
        self.padding = None
        if key_padding_mask is not None:
            zero = torch.zeros(key_padding_mask.shape, dtype=self.dtype, device=q.device)
            self.padding = zero.masked_fill_(key_padding_mask, -math.inf)[:, None, None, :]

    def _logit_table(self, static: Tensor | None, device: torch.device) -> Tensor | None:
        """The static table in base 2, -inf where the causal mask hides; None if neither exists."""
        if static is None and not self.causal:
            return None
        entries = self.queries + self.keys - 1
        table = torch.zeros(1, entries, dtype=self.dtype, device=device) if static is None else static.to(self.dtype)
        table = table * LOG2_E
        if self.causal:
            table[:, max(0, self.offset + self.queries) :] = -math.inf
        return table.contiguous()

    def shares(self, *, backward: bool = False) -> list[list[Tile]]:
        tiles = plan_tiles(
            batch=self.batch,
            queries=self.queries,
            keys=self.keys,
            offset=self.offset if self.causal else None,
            planes=max(self.hidden, self.heads),
            itemsize=self.dtype.itemsize,
        )
        workers = torch.get_num_threads() if self.q.device.type == "cpu" else 1
        if backward:
            workers = min(workers, MAX_BACKWARD_WORKERS)
        return balanced_shares(tiles, lambda tile: tile.cells, workers)

    def scaled_queries(self, tile: Tile) -> Float[Tensor, "i g r d"]:
        """The tile's query rows, reversed and scaled; heads that share a key head are stacked as more rows."""
        rows = _rows(self.q, tile).flip(2) * self.scale
        return rows.view(tile.items * self.kv_heads, -1, rows.shape[-1])

    def keys_of(self, x: Float[Tensor, "b g k d"], tile: Tile) -> Float[Tensor, "i k d"]:
        return x[tile.b0 : tile.b1, :, : tile.keys].flatten(0, 1)

    def scores(self, tile: Tile, into: Tensor) -> Float[Tensor, "i h r k"]:
        flat = into.view(tile.items * self.kv_heads, -1, tile.keys)
        torch.bmm(self.scaled_queries(tile), self.keys_of(self.k, tile).transpose(1, 2), out=flat)
        return into

    def hidden_units(self, scores: Tensor, tile: Tile, into: Tensor) -> Float[Tensor, "i D c"]:
        """leaky(wa . A + pre[lag])"""
        _mix_heads(self.wa, scores.view(tile.items, self.heads, -1), into)
        into.view(tile.items, -1, tile.rows, tile.keys).add_(self.view_of(self.pre, tile))
        return torch.nn.functional.leaky_relu_(into, LEAKY_SLOPE)

    def logits(self, tile: Tile, scratch: "_Scratch") -> Float[Tensor, "i h r k"]:
        """Masked logits in base 2, overwriting the scores."""
        scores = self.scores(tile, scratch.heads(tile))
        hidden = None if self.wa is None else self.hidden_units(scores, tile, scratch.hidden(tile))
        return self.finish_logits(scores, hidden, tile, into=scores)

    def finish_logits(self, scores: Tensor, hidden: Tensor | None, tile: Tile, into: Tensor) -> Tensor:
        if hidden is None:
            torch.mul(scores, LOG2_E, out=into)
        else:
            cells = (tile.items, self.heads, -1)
            _add_mixed_heads(scores.view(cells), self.w2, hidden, into.view(cells))
        if self.table is not None:
            into.add_(self.view_of(self.table, tile))
        if self.padding is not None:
            into.add_(self.padding[tile.b0 : tile.b1, ..., : tile.keys])
        return into

    def times_values(self, weights: Tensor, tile: Tile) -> Float[Tensor, "i h r e"]:
        flat = weights.view(tile.items * self.kv_heads, -1, tile.keys)
        return torch.bmm(flat, self.keys_of(self.v, tile)).view(tile.items, self.heads, tile.rows, -1)

    def start(self, tile: Tile) -> int:
        """Table index of the tile's first cell: its last row against key 0."""
        return self.queries - tile.i1

    def view_of(self, table: Tensor, tile: Tile) -> Float[Tensor, "c r k"]:
        """The table on every cell of the tile, without a copy."""
        where = table.storage_offset() + self.start(tile)
        return table.as_strided((len(table), tile.rows, tile.keys), (table.stride(0), 1, 1), where)


class _Scratch:
    """One worker's buffers, allocated once for its largest tile."""

    def __init__(self, call: _Call, tiles: Sequence[Tile], *, backward: bool = False) -> None:
        cells = max((tile.cells for tile in tiles), default=0)
        self._heads, self._units = call.heads, call.hidden
        like = call.q
        self._head_planes = [like.new_empty(call.heads * cells) for _ in range(3 if backward else 1)]
        self._hidden_planes = [like.new_empty(call.hidden * cells) for _ in range(2 if backward else 1)]

    def heads(self, tile: Tile, which: int = 0) -> Float[Tensor, "i h r k"]:
        size = self._heads * tile.cells
        return self._head_planes[which][:size].view(tile.items, self._heads, tile.rows, tile.keys)

    def hidden(self, tile: Tile, which: int = 0) -> Float[Tensor, "i D c"]:
        size = self._units * tile.cells
        return self._hidden_planes[which][:size].view(tile.items, self._units, -1)


class _Sums:
    """One worker's share of the gradients that many tiles contribute to."""

    def __init__(self, call: _Call) -> None:
        self.dk, self.dv = torch.zeros_like(call.k), torch.zeros_like(call.v)
        parts = (call.static, call.wa, call.pre, call.w2)
        self.static, self.wa, self.pre, self.w2 = (
            call.q.new_empty(0) if t is None else call.q.new_zeros(t.shape) for t in parts
        )

    def add_(self, other: "_Sums") -> None:
        for name, value in vars(self).items():
            value.add_(getattr(other, name))


def _backward_tile(
    call: _Call, tile: Tile, scratch: _Scratch, sums: _Sums, grad: Tensor, delta: Tensor, lse: Tensor, dq: Tensor
) -> None:
    """Recompute the tile's weights P, then: dL = P (dO v' - delta), through f to dA, from there to q and k."""
    flat_heads = (tile.items * call.kv_heads, -1, tile.keys)
    scores = call.scores(tile, scratch.heads(tile, 0))
    hidden = None if call.wa is None else call.hidden_units(scores, tile, scratch.hidden(tile, 0))
    weights = call.finish_logits(scores, hidden, tile, into=scratch.heads(tile, 1))
    weights.sub_(_rows(lse, tile).flip(2).unsqueeze(-1)).exp2_()

    d_out = _rows(grad, tile).flip(2).reshape(tile.items * call.kv_heads, -1, grad.shape[-1])
    _add_product(call.keys_of(sums.dv, tile), weights.view(flat_heads).transpose(1, 2), d_out)
    d_logits = scratch.heads(tile, 2)
    torch.bmm(d_out, call.keys_of(call.v, tile).transpose(1, 2), out=d_logits.view(flat_heads))
    d_logits.sub_(_rows(delta, tile).flip(2).unsqueeze(-1)).mul_(weights)

    if call.static is not None:
        _add_diagonals(sums.static, d_logits, call, tile)
    if hidden is not None:
        _backward_through_f(call, tile, scores, hidden, d_logits, scratch.hidden(tile, 1), sums)

    d_scores = d_logits.view(flat_heads)
    dq_rows = torch.bmm(d_scores, call.keys_of(call.k, tile)).view(tile.items, call.heads, tile.rows, -1)
    _rows(dq, tile).copy_(dq_rows.mul_(call.scale).flip(2))
    _add_product(call.keys_of(sums.dk, tile), d_scores.transpose(1, 2), call.scaled_queries(tile))


def _backward_through_f(
    call: _Call, tile: Tile, scores: Tensor, hidden: Tensor, d_logits: Tensor, d_hidden: Tensor, sums: _Sums
) -> None:
    """Adds the gradients of w2, wa and pre, and turns dL into dA in place: dA = dL + wa' dZ, dZ = leaky' (w2' dL)."""
    cells = (tile.items, call.heads, -1)
    _mix_heads(call.w2.t(), d_logits.view(cells), d_hidden)
    for item in range(tile.items):
        sums.w2.addmm_(d_logits.view(cells)[item], hidden[item].t())
    _leaky_backward(d_hidden, hidden, LEAKY_SLOPE, True, grad_input=d_hidden)
    for item in range(tile.items):
        sums.wa.addmm_(d_hidden[item], scores.view(cells)[item].t())
    _add_diagonals(sums.pre, d_hidden.view(tile.items, -1, tile.rows, tile.keys), call, tile)
    _accumulate_mixed_heads(d_logits.view(cells), call.wa.t(), d_hidden)


def _rows(x: Tensor, tile: Tile) -> Tensor:
    return x[tile.b0 : tile.b1, :, tile.i0 : tile.i1]


def _mix_heads(weight: Tensor, x: Tensor, into: Tensor) -> None:
    """into = weight . x over the head axis of [item, head, cell]."""
    if len(x) == 1:
        torch.mm(weight, x[0], out=into[0])
    else:
        torch.bmm(weight.expand(len(x), *weight.shape), x, out=into)


def _add_mixed_heads(scores: Tensor, weight: Tensor, hidden: Tensor, into: Tensor) -> None:
    """into = (scores + weight . hidden) in base 2. ``into`` may be ``scores``."""
    if len(scores) == 1:
        torch.addmm(scores[0], weight, hidden[0], beta=LOG2_E, alpha=LOG2_E, out=into[0])
    else:
        batch = weight.expand(len(scores), *weight.shape)
        torch.baddbmm(scores, batch, hidden, beta=LOG2_E, alpha=LOG2_E, out=into)


def _accumulate_mixed_heads(x: Tensor, weight: Tensor, hidden: Tensor) -> None:
    """x += weight . hidden"""
    if len(x) == 1:
        x[0].addmm_(weight, hidden[0])
    else:
        x.baddbmm_(weight.expand(len(x), *weight.shape), hidden)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, in place also where ``total`` is a view with gaps."""
    total.baddbmm_(a, b)


def _add_diagonals(total: Float[Tensor, "c n"], x: Float[Tensor, "i c r k"], call: _Call, tile: Tile) -> None:
    """Add the sums over anti-diagonals r + j to the table entries they came from."""
    x = x[0] if len(x) == 1 else x.sum(0)
    # A causal tile whose keys end at its last row's own is zero beyond its main anti-diagonal.
    hidden_corner = call.causal and tile.keys == call.offset + tile.i1
    sums = _diagonals_of_triangle(x) if hidden_corner else _diagonals(x)
    start = call.start(tile)
    total[:, start : start + sums.shape[1]].add_(sums)


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
    x = x.contiguous()
    sums = x.as_strided((channels, rows, keys - 1), (rows * keys, keys - 1, 1), x.storage_offset()).sum(1)
    sums[:, 0] = x[:, 0, 0]
    last = x.as_strided((channels, rows), (rows * keys, keys - 1), x.storage_offset() + keys - 1).sum(1)
    return torch.cat([sums, last.unsqueeze(1)], dim=1)
