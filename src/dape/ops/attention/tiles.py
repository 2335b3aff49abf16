"""The tile engine: attention for logits in closed form,

    logits = A + static + w2 . leaky(wa . A + pre),        static = B + b2, pre = wb . B + b1 (either may be absent)

tile by tile, forward and backward, without ever holding a whole matrix. README.md in this folder derives the backward
pass and explains the layout. A tile holds all heads of some query rows, *in reversed order*, against the keys they see:
[item, head, row, key]. Where ``static`` and ``pre`` come from is the business of :class:`Terms`: tables over lags
(``lag_tables.py``) or a bias evaluated on each tile (``bias_tiles.py``).

Logits are kept in base 2 (log2 e is folded into the last product), exp2 being cheaper than exp.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from dape.ops.attention.parallel import balanced_shares, run_shares
from dape.ops.attention.tiling import Tile, plan_tiles
from dape.positional.base import LEAKY_SLOPE, accumulation_dtype

LOG2_E = math.log2(math.e)
STRIP_BYTES = 1 << 20
"""Hidden units made at a time in the forward pass: about a core's own cache (measured in docs/lab-notes.md)."""
MAX_BACKWARD_WORKERS = 16
"""Each worker of the backward pass sums its own gradients of k and v; more would cost more memory than they save."""
_leaky_backward = torch.ops.aten.leaky_relu_backward.grad_input


@dataclass(frozen=True)
class TileTerms:
    """The parts of a tile's logits that no content enters, broadcastable over the tile."""

    static: Float[Tensor, "*i #h r k"] | None
    """Added to the logits, in base 2, -inf where a mask hides."""
    pre: Float[Tensor, "*i D r k"] | None
    """Added to the hidden units before the activation."""
    bias: Float[Tensor, "*i h r k"] | None = None
    """B with its graph, where the backward pass of the terms needs it."""


@dataclass(frozen=True)
class Mixer:
    """The two matrices of f that meet content."""

    wa: Float[Tensor, "D h"]
    w2: Float[Tensor, "h D"]


class MixerSums:
    """Gradients of a :class:`Mixer`. That of wa is summed transposed: a product of h rows with D columns takes half the
    time of one of D rows with h columns."""

    def __init__(self, mixer: Mixer) -> None:
        self.wa_transposed = torch.zeros_like(mixer.w2)
        self.w2 = torch.zeros_like(mixer.w2)

    @property
    def wa(self) -> Float[Tensor, "D h"]:
        return self.wa_transposed.t().contiguous()

    def add_(self, other: "MixerSums") -> None:
        self.wa_transposed.add_(other.wa_transposed)
        self.w2.add_(other.w2)


@runtime_checkable
class TermSums(Protocol):
    """One worker's share of the gradients of the terms."""

    def add_tile(self, tile: Tile, terms: TileTerms, d_logits: Tensor, d_hidden: Tensor | None) -> None: ...

    def add_(self, other: "TermSums") -> None: ...


@runtime_checkable
class Terms(Protocol):
    def on(self, tile: Tile, *, backward: bool = False) -> TileTerms: ...

    def sums(self) -> TermSums: ...


class Call:
    """The inputs of one call in the precision of the computation."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, wa: Tensor | None, w2: Tensor | None, *, causal_offset: int | None
    ) -> None:
        self.dtype = accumulation_dtype(q.dtype)
        self.q, self.k, self.v = (x.to(self.dtype).contiguous() for x in (q, k, v))
        self.batch, self.heads, self.queries, width = q.shape
        self.kv_heads, self.keys = k.shape[1:3]
        self.scale = 1 / math.sqrt(width)
        self.causal_offset = causal_offset
        """Row i sees the first causal_offset + i + 1 keys; None: tiles take all keys."""
        self.mixer = None
        if wa is not None and w2 is not None:
            self.mixer = Mixer(wa.to(self.dtype).contiguous(), w2.to(self.dtype).contiguous())
        self.hidden = 0 if wa is None else wa.shape[0]

    def shares(self, *, backward: bool = False) -> list[list[Tile]]:
        tiles = plan_tiles(
            batch=self.batch,
            queries=self.queries,
            keys=self.keys,
            offset=self.causal_offset,
            planes=max(self.hidden, self.heads),
            itemsize=self.dtype.itemsize,
        )
        workers = torch.get_num_threads() if self.q.device.type == "cpu" else 1
        if backward:
            workers = min(workers, MAX_BACKWARD_WORKERS)
        return balanced_shares(tiles, lambda tile: tile.cells, workers)

    def scaled_queries(self, tile: Tile) -> Float[Tensor, "i r d"]:
        """The tile's query rows, reversed and scaled; heads that share a key head are stacked as more rows."""
        rows = rows_of(self.q, tile).flip(2) * self.scale
        return rows.view(tile.items * self.kv_heads, -1, rows.shape[-1])

    def keys_of(self, x: Float[Tensor, "b g k d"], tile: Tile) -> Float[Tensor, "i k d"]:
        return x[tile.b0 : tile.b1, :, : tile.keys].flatten(0, 1)

    def scores(self, tile: Tile, into: Tensor) -> Float[Tensor, "i h r k"]:
        flat = into.view(tile.items * self.kv_heads, -1, tile.keys)
        torch.bmm(self.scaled_queries(tile), self.keys_of(self.k, tile).transpose(1, 2), out=flat)
        return into

    def hidden_units(self, scores: Tensor, terms: TileTerms, tile: Tile, into: Tensor) -> Float[Tensor, "i D c"] | None:
        """leaky(wa . A + pre), if there is an f."""
        if self.mixer is None:
            return None
        assert terms.pre is not None
        _mix_heads(self.mixer.wa, scores.view(tile.items, self.heads, -1), into)
        into.view(tile.items, -1, tile.rows, tile.keys).add_(terms.pre)
        return torch.nn.functional.leaky_relu_(into, LEAKY_SLOPE)

    def logits(self, scores: Tensor, hidden: Tensor | None, terms: TileTerms, tile: Tile, into: Tensor) -> Tensor:
        """Masked logits in base 2. ``into`` may be ``scores``."""
        if self.mixer is None or hidden is None:
            torch.mul(scores, LOG2_E, out=into)
        else:
            cells = (tile.items, self.heads, -1)
            _add_mixed_heads(scores.view(cells), self.mixer.w2, hidden, into.view(cells))
        return into if terms.static is None else into.add_(terms.static)

    def logits_in_place(self, scores: Tensor, terms: TileTerms, tile: Tile, scratch: "_Scratch") -> Tensor:
        """As ``logits``, overwriting the scores. The hidden units of a single item are made a few rows at a time, so
        that they never leave the core's own cache."""
        if self.mixer is None or terms.pre is None or tile.items > 1:
            hidden = self.hidden_units(scores, terms, tile, scratch.hidden(tile))
            return self.logits(scores, hidden, terms, tile, into=scores)
        flat = scores.view(self.heads, -1)
        pre = terms.pre[0] if terms.pre.dim() == 4 else terms.pre
        step = max(1, STRIP_BYTES // (self.hidden * tile.keys * self.dtype.itemsize))
        for first in range(0, tile.rows, step):
            rows = min(step, tile.rows - first)
            strip = flat[:, first * tile.keys : (first + rows) * tile.keys]
            hidden = scratch.strip(rows * tile.keys)
            torch.mm(self.mixer.wa, strip, out=hidden)
            part = pre if pre.shape[1] == 1 else pre[:, first : first + rows]
            hidden.view(self.hidden, rows, tile.keys).add_(part)
            torch.nn.functional.leaky_relu_(hidden, LEAKY_SLOPE)
            torch.addmm(strip, self.mixer.w2, hidden, beta=LOG2_E, alpha=LOG2_E, out=strip)
        return scores if terms.static is None else scores.add_(terms.static)

    def times_values(self, weights: Tensor, tile: Tile) -> Float[Tensor, "i h r e"]:
        flat = weights.view(tile.items * self.kv_heads, -1, tile.keys)
        return torch.bmm(flat, self.keys_of(self.v, tile)).view(tile.items, self.heads, tile.rows, -1)


def run_forward(
    call: Call, terms: Terms, dtype: torch.dtype
) -> tuple[Float[Tensor, "b h q e"], Float[Tensor, "b h q"]]:
    """Output, and per row the base-2 logarithm of the softmax denominator."""
    shape, device = call.q.shape[:-1], call.q.device
    out = torch.empty(*shape, call.v.shape[-1], dtype=dtype, device=device)
    lse = torch.empty(shape, dtype=call.dtype, device=device)

    def work(tiles: Sequence[Tile]) -> None:
        scratch = _Scratch(call, tiles, head_planes=1, hidden_planes=1)
        for tile in tiles:
            if tile.keys == 0:
                rows_of(out, tile).zero_()
                rows_of(lse, tile).zero_()
            else:
                _forward_tile(call, tile, terms.on(tile), scratch, out, lse)

    run_shares(work, call.shares(), device=device)
    return out, lse


def _forward_tile(call: Call, tile: Tile, terms: TileTerms, scratch: "_Scratch", out: Tensor, lse: Tensor) -> None:
    scores = call.scores(tile, scratch.heads(tile))
    logits = call.logits_in_place(scores, terms, tile, scratch)
    top = logits.amax(-1, keepdim=True).clamp_(min=torch.finfo(call.dtype).min)
    weights = logits.sub_(top).exp2_()
    # A row that sees nothing sums to 0; its output must be 0 and not 0 / 0.
    total = weights.sum(-1, keepdim=True).clamp_(min=torch.finfo(call.dtype).tiny)
    rows_of(out, tile).copy_(call.times_values(weights, tile).div_(total).flip(2))
    rows_of(lse, tile).copy_((top + total.log2()).squeeze(-1).flip(2))


class Gradients:
    """One worker's share of the gradients that many tiles contribute to."""

    def __init__(self, call: Call, terms: Terms) -> None:
        self.dk, self.dv = torch.zeros_like(call.k), torch.zeros_like(call.v)
        self.mixer = None if call.mixer is None else MixerSums(call.mixer)
        self.terms = terms.sums()

    def add_(self, other: "Gradients") -> None:
        self.dk.add_(other.dk)
        self.dv.add_(other.dv)
        if self.mixer is not None and other.mixer is not None:
            self.mixer.add_(other.mixer)
        self.terms.add_(other.terms)


def run_backward(
    call: Call, terms: Terms, grad: Tensor, out: Tensor, lse: Tensor
) -> tuple[Float[Tensor, "b h q d"], Gradients]:
    """The gradient of q, and everything else that has one."""
    grad = grad.to(call.dtype)
    delta = (grad * out.to(call.dtype)).sum(-1)
    dq = torch.empty_like(call.q)

    def work(tiles: Sequence[Tile]) -> Gradients:
        scratch = _Scratch(call, tiles, head_planes=3, hidden_planes=2)
        sums = Gradients(call, terms)
        for tile in tiles:
            if tile.keys == 0:
                rows_of(dq, tile).zero_()
            else:
                _backward_tile(call, tile, terms.on(tile, backward=True), scratch, sums, grad, delta, lse, dq)
        return sums

    first, *others = run_shares(work, call.shares(backward=True), device=dq.device) or [Gradients(call, terms)]
    for other in others:
        first.add_(other)
    return dq, first


def _backward_tile(
    call: Call,
    tile: Tile,
    terms: TileTerms,
    scratch: "_Scratch",
    sums: Gradients,
    grad: Tensor,
    delta: Tensor,
    lse: Tensor,
    dq: Tensor,
) -> None:
    """Recompute the tile's weights P, then: dL = P (dO v' - delta), through f to dA, from there to q and k."""
    flat_heads = (tile.items * call.kv_heads, -1, tile.keys)
    scores = call.scores(tile, scratch.heads(tile, 0))
    hidden = call.hidden_units(scores, terms, tile, scratch.hidden(tile, 0))
    weights = call.logits(scores, hidden, terms, tile, into=scratch.heads(tile, 1))
    weights.sub_(rows_of(lse, tile).flip(2).unsqueeze(-1)).exp2_()

    d_out = rows_of(grad, tile).flip(2).reshape(tile.items * call.kv_heads, -1, grad.shape[-1])
    call.keys_of(sums.dv, tile).baddbmm_(weights.view(flat_heads).transpose(1, 2), d_out)
    d_logits = scratch.heads(tile, 2)
    torch.bmm(d_out, call.keys_of(call.v, tile).transpose(1, 2), out=d_logits.view(flat_heads))
    d_logits.sub_(rows_of(delta, tile).flip(2).unsqueeze(-1)).mul_(weights)

    d_hidden = None
    if call.mixer is not None and sums.mixer is not None and hidden is not None:
        d_hidden = _backward_through_f(call.mixer, scores, hidden, d_logits, scratch.hidden(tile, 1), sums.mixer)
    sums.terms.add_tile(
        tile, terms, d_logits, None if d_hidden is None else d_hidden.view(tile.items, -1, tile.rows, tile.keys)
    )
    if call.mixer is not None and d_hidden is not None:
        _accumulate_mixed_heads(d_logits.flatten(2), call.mixer.wa.t(), d_hidden)

    d_scores = d_logits.view(flat_heads)
    dq_rows = torch.bmm(d_scores, call.keys_of(call.k, tile)).view(tile.items, call.heads, tile.rows, -1)
    rows_of(dq, tile).copy_(dq_rows.mul_(call.scale).flip(2))
    call.keys_of(sums.dk, tile).baddbmm_(d_scores.transpose(1, 2), call.scaled_queries(tile))


def _backward_through_f(
    mixer: Mixer, scores: Tensor, hidden: Tensor, d_logits: Tensor, d_hidden: Tensor, sums: MixerSums
) -> Float[Tensor, "i D c"]:
    """dZ = leaky' (w2' dL), the gradient before the activation; adds those of w2 and wa on the way."""
    scores, d_logits = scores.flatten(2), d_logits.flatten(2)
    _mix_heads(mixer.w2.t(), d_logits, d_hidden)
    for d_item, item in zip(d_logits, hidden, strict=True):
        sums.w2.addmm_(d_item, item.t())
    # The activation keeps the sign, so its result tells the slope.
    _leaky_backward(d_hidden, hidden, LEAKY_SLOPE, True, grad_input=d_hidden)
    for d_item, item in zip(d_hidden, scores, strict=True):
        sums.wa_transposed.addmm_(item, d_item.t())
    return d_hidden


class _Scratch:
    """One worker's buffers, allocated once for its largest tile."""

    def __init__(self, call: Call, tiles: Sequence[Tile], *, head_planes: int, hidden_planes: int) -> None:
        cells = max((tile.cells for tile in tiles), default=0)
        self._heads, self._units = call.heads, call.hidden
        self._head_planes = [call.q.new_empty(call.heads * cells) for _ in range(head_planes)]
        self._hidden_planes = [call.q.new_empty(call.hidden * cells) for _ in range(hidden_planes)]

    def heads(self, tile: Tile, which: int = 0) -> Float[Tensor, "i h r k"]:
        size = self._heads * tile.cells
        return self._head_planes[which][:size].view(tile.items, self._heads, tile.rows, tile.keys)

    def strip(self, cells: int) -> Float[Tensor, "D c"]:
        return self._hidden_planes[0][: self._units * cells].view(self._units, cells)

    def hidden(self, tile: Tile, which: int = 0) -> Float[Tensor, "i D c"]:
        size = self._units * tile.cells
        return self._hidden_planes[which][:size].view(tile.items, self._units, tile.rows * tile.keys)


def rows_of(x: Tensor, tile: Tile) -> Tensor:
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
