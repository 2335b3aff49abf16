"""The tile engine: attention for logits in closed form (``engines/base.py``), forward and backward, in PyTorch.

It computes tile by tile and never holds a whole matrix. README.md in this folder derives the backward pass and explains
the layout. A tile is [head, item, row, key]: all heads of some query rows, *in reversed order*, and the keys they see.
:class:`Terms` provides ``static`` and ``pre``, from tables over lags (``engines/tiles.py``) or from a bias evaluated on
each tile (``bias_tiles.py``).

Logits are in base 2 (log2 e is a factor of the last product), because exp2 is cheaper than exp.
"""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from dape.ops.attention.parallel import balanced_shares, run_shares
from dape.ops.attention.tiling import Tile, plan_tiles
from dape.positional.base import LEAKY_SLOPE, accumulation_dtype

LOG2_E = math.log2(math.e)
STRIP_BYTES = 2 << 20
"""Bytes of hidden units computed at a time: about a core's own cache (measured in docs/lab-notes.md)."""
CACHE_LINE = 64
MANY_PRODUCTS = 16
"""With more products, bmm and one addition are faster than adding products one by one: see ``_add_products``."""
SHORT_CALL = 1 << 23
"""With fewer scores, a call without f uses torch's threads within each operation (README.md, Threads)."""
SHARES_PER_WORKER = 2
"""Shares of a batch for each worker: extra shares let other workers finish what a preempted one left."""
MAX_BACKWARD_WORKERS = 16
"""Most workers of the backward pass: each has its own sums of the gradients of k and v, which take memory."""
_leaky_backward = torch.ops.aten.leaky_relu_backward.grad_input


@dataclass(frozen=True)
class TileTerms:
    """The parts of a tile's logits without content, broadcastable over the tile."""

    static: Float[Tensor, "#h #i #r k"] | None
    """Added to the logits: in base 2, -inf where a mask hides."""
    pre: Float[Tensor, "D #i #r #k"] | None
    """Added to the hidden units before the activation."""
    bias: Float[Tensor, "h #i r k"] | None = None
    """B with its graph, if the backward pass of the terms needs it."""


@dataclass(frozen=True)
class Mixer:
    """The two matrices of f that are applied to content."""

    wa: Float[Tensor, "D h"]
    w2: Float[Tensor, "h D"]


class MixerSums:
    """Gradients of a :class:`Mixer`. The gradient of wa is summed transposed: a product of h rows with D columns takes
    half the time of D rows with h columns."""

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
    @property
    def shared_by_items(self) -> bool:
        """Whether all items of the batch have the same terms, which are expensive enough to be kept for the next
        item."""
        ...

    def on(self, tile: Tile, *, backward: bool = False) -> TileTerms: ...

    def sums(self) -> TermSums: ...


class Call:
    """The inputs of one call, in the dtype of the computation and in the layout of tiles.

    They are cut into parts of a few items, [head, item, row, width]. Query rows are reversed and scaled.
    """

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, wa: Tensor | None, w2: Tensor | None, *, causal_offset: int | None
    ) -> None:
        self.dtype, self.device = accumulation_dtype(q.dtype), q.device
        self.batch, self.heads, self.queries, self.width = q.shape
        self.kv_heads, self.keys = k.shape[1:3]
        self.value_width = v.shape[-1]
        self.scale = 1 / math.sqrt(self.width)
        self.causal_offset = causal_offset
        """Row i sees the first causal_offset + i + 1 keys; None: all rows see all keys."""
        self.mixer = None
        if wa is not None and w2 is not None:
            self.mixer = Mixer(wa.to(self.dtype).contiguous(), w2.to(self.dtype).contiguous())
        self.hidden = 0 if wa is None else wa.shape[0]
        self.tiles = self._plan()
        self.items = self.tiles[0].items if self.tiles else 1
        self.q = [part.mul_(self.scale) for part in self.reversed_parts(q)]
        self.k, self.v = self.parts(k), self.parts(v)

    def _plan(self) -> list[Tile]:
        most_items = self.batch if self._workers == 1 else -(-self.batch // (SHARES_PER_WORKER * self._workers))
        if self.kv_heads < self.heads:
            # Heads that share a key head are stacked as further rows, which requires a single item.
            most_items = 1
        return plan_tiles(
            batch=self.batch,
            queries=self.queries,
            keys=self.keys,
            offset=self.causal_offset,
            planes=max(self.hidden, self.heads),
            itemsize=self.dtype.itemsize,
            most_items=most_items,
        )

    @functools.cached_property
    def _workers(self) -> int:
        """The number of threads that compute tiles."""
        short = self.mixer is None and self.batch * self.heads * self.queries * self.keys < SHORT_CALL
        return torch.get_num_threads() if self.device.type == "cpu" and not short else 1

    def shares(self, *, backward: bool = False) -> list[list[Tile]]:
        """The tiles of every worker. A large batch is divided into more shares of items than workers, and free workers
        take the next share. The tiles of a share are fixed, and therefore the order of all sums."""
        workers = min(self._workers, MAX_BACKWARD_WORKERS) if backward else self._workers
        parts = -(-self.batch // self.items)
        if workers == 1 or parts < SHARES_PER_WORKER * workers:
            return balanced_shares(self.tiles, lambda tile: tile.cells, workers)
        shares: list[list[Tile]] = [[] for _ in range(SHARES_PER_WORKER * workers)]
        for tile in self.tiles:
            shares[self.part(tile) % len(shares)].append(tile)
        return shares

    def part(self, tile: Tile) -> int:
        return tile.b0 // self.items

    def parts(self, x: Float[Tensor, "b h *n"]) -> list[Float[Tensor, "h i *n"]]:
        return [part.transpose(0, 1).to(self.dtype).contiguous() for part in x.split(self.items)]

    def reversed_parts(self, x: Float[Tensor, "b h q *n"]) -> list[Float[Tensor, "h i q *n"]]:
        return self.parts(x.flip(2))

    def rows_of(self, parts: Sequence[Tensor], tile: Tile) -> Float[Tensor, "h i r *n"]:
        """The rows of a tile, from parts of reversed rows."""
        return parts[self.part(tile)][:, :, self.queries - tile.i1 : self.queries - tile.i0]

    def keys_of(
        self, parts: Sequence[Float[Tensor, "g i k d"]] | Mapping[int, Float[Tensor, "g i k d"]], tile: Tile
    ) -> Float[Tensor, "n k d"]:
        return parts[self.part(tile)][:, :, : tile.keys].flatten(0, 1)

    def stacked(self, x: Float[Tensor, "h i r n"]) -> Float[Tensor, "g*i r n"]:
        """One matrix for each item and key head."""
        return x.reshape(self.kv_heads * x.shape[1], -1, x.shape[-1])

    def scores(self, tile: Tile, into: Tensor) -> Float[Tensor, "h i r k"]:
        return self.times_keys(self.rows_of(self.q, tile), self.k, tile, into)

    def times_keys(self, rows: Tensor, parts: list[Tensor], tile: Tile, into: Tensor) -> Float[Tensor, "h i r k"]:
        torch.bmm(self.stacked(rows), self.keys_of(parts, tile).transpose(1, 2), out=self.stacked(into))
        return into

    def strips(self, tile: Tile) -> Iterator[tuple[Tile, slice]]:
        """The parts of a tile in which logits are computed from scores; the whole tile if there are no hidden units."""
        return tile.strips(STRIP_BYTES // (self.hidden * self.dtype.itemsize) if self.hidden else tile.cells)

    def hidden_units(
        self, scores: Float[Tensor, "h c"], terms: TileTerms, strip: Tile, into: Float[Tensor, "D c"]
    ) -> Float[Tensor, "D c"] | None:
        """leaky(wa . A + pre), if there is an f."""
        if self.mixer is None:
            return None
        assert terms.pre is not None
        torch.mm(self.mixer.wa, scores, out=into)
        on_cells(into, strip).add_(terms.pre)
        return torch.nn.functional.leaky_relu_(into, LEAKY_SLOPE)

    def logits(
        self, scores: Float[Tensor, "h c"], hidden: Tensor | None, terms: TileTerms, strip: Tile, into: Tensor
    ) -> Float[Tensor, "h i r k"]:
        """Masked logits in base 2. ``into`` may be ``scores``."""
        if self.mixer is None or hidden is None:
            torch.mul(scores, LOG2_E, out=into)
        else:
            torch.addmm(scores, self.mixer.w2, hidden, beta=LOG2_E, alpha=LOG2_E, out=into)
        logits = on_cells(into, strip)
        return logits if terms.static is None else logits.add_(terms.static)


def run_forward(call: Call, terms: Terms) -> tuple[Float[Tensor, "b h q e"], Float[Tensor, "b h q 2"]]:
    """The output, and for each row the largest logit (base 2) and the sum of the weights relative to it (1 if the row
    sees no key). These are two numbers, because their logarithm would lose digits of the sum beside a huge logit."""
    shape, device = (call.batch, call.heads, call.queries), call.device
    out = torch.empty(*shape, call.value_width, dtype=call.dtype, device=device)
    softmax = torch.empty(*shape, 2, dtype=call.dtype, device=device)

    def work(tiles: Sequence[Tile]) -> None:
        scratch = _Scratch(call, tiles, head_planes=1, hidden_planes=1)
        own_terms = _TermsOfLatestRows(terms)
        for tile in tiles:
            if tile.keys == 0:
                original_rows(out, tile).zero_()
                original_rows(softmax, tile).fill_(1)
            else:
                _forward_tile(call, tile, own_terms, scratch, out, softmax)

    run_shares(work, call.shares(), device=device)
    return out, softmax


class _TermsOfLatestRows:
    """One worker's terms. Tiles of the same rows follow each other, so terms that items share are kept for the next."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._rows: tuple[int, int, int] | None = None
        self._kept: dict[tuple[int, int], TileTerms] = {}

    def on(self, strip: Tile, tile: Tile) -> TileTerms:
        """The terms of a strip of the tile."""
        if not self._terms.shared_by_items:
            return self._terms.on(strip)
        if self._rows != (tile.i0, tile.i1, tile.keys):
            self._rows, self._kept = (tile.i0, tile.i1, tile.keys), {}
        where = (strip.i0, strip.i1)
        if where not in self._kept:
            self._kept[where] = self._terms.on(strip)
        return self._kept[where]


def _forward_tile(
    call: Call, tile: Tile, terms: _TermsOfLatestRows, scratch: "_Scratch", out: Tensor, softmax: Tensor
) -> None:
    logits = call.scores(tile, scratch.heads(tile))
    for strip, columns in call.strips(tile):
        part, own = logits.flatten(1)[:, columns], terms.on(strip, tile)
        hidden = call.hidden_units(part, own, strip, scratch.hidden(strip))
        call.logits(part, hidden, own, strip, into=part)
    top = logits.amax(-1, keepdim=True).clamp_(min=torch.finfo(call.dtype).min)
    weights = logits.sub_(top).exp2_()
    # The weights of a row that sees no key sum to 0. Its output must be 0, not 0 / 0.
    total = weights.sum(-1, keepdim=True)
    total.masked_fill_(total == 0, 1)
    values = torch.bmm(call.stacked(weights), call.keys_of(call.v, tile)).view(*weights.shape[:-1], -1)
    original_rows(out, tile).copy_(values.div_(total).flip(2))
    original_rows(softmax, tile).copy_(torch.cat([top, total], dim=-1).flip(2))


class Gradients:
    """One share's sums of the gradients to which several tiles contribute."""

    def __init__(self, call: Call, terms: Terms, tiles: Sequence[Tile]) -> None:
        parts = {call.part(tile) for tile in tiles} or {0}  # an empty batch has one empty part and no tiles
        self.dk, self.dv = ({part: torch.zeros_like(x[part]) for part in parts} for x in (call.k, call.v))
        self.mixer = None if call.mixer is None else MixerSums(call.mixer)
        self.terms = terms.sums()

    def add_(self, other: "Gradients") -> None:
        for mine, theirs in ((self.dk, other.dk), (self.dv, other.dv)):
            for part, x in theirs.items():
                mine[part] = mine[part].add_(x) if part in mine else x
        if self.mixer is not None and other.mixer is not None:
            self.mixer.add_(other.mixer)
        self.terms.add_(other.terms)


@dataclass(frozen=True)
class Outcome:
    """Results of the forward pass and the output's gradient, in the layout of tiles.

    The gradient is divided by the sum of its row's weights, so that weights need not be divided.
    """

    d_out: list[Float[Tensor, "h i q e"]]
    delta: list[Float[Tensor, "h i q 1"]]
    """For each row the sum of d_out * out, which the softmax's derivative subtracts."""
    top: list[Float[Tensor, "h i q 1"]]
    total: list[Float[Tensor, "h i q 1"]]
    """For each row the sum of its weights."""
    expected: list[Float[Tensor, "h i q 1"]] | None = None
    """For each row the sum of the gradients of its logits, if that is not 0."""


def run_backward(
    call: Call, terms: Terms, grad: Tensor, out: Tensor, softmax: Tensor, sink: Float[Tensor, "b h q"] | None = None
) -> tuple[Float[Tensor, "b h q d"], Gradients]:
    """The gradient of q, and all others. ``sink`` is the sinks' part of the sums."""
    top, total = softmax.split(1, dim=-1)
    grad = grad.to(call.dtype) / total
    delta = (grad * out.to(call.dtype)).sum(-1, keepdim=True)
    outcome = Outcome(*(call.reversed_parts(x) for x in (grad, delta, top, total)))
    if sink is not None:
        outcome = replace(outcome, expected=call.reversed_parts(delta * sink.unsqueeze(-1)))
    dq = torch.empty(call.batch, call.heads, call.queries, call.width, dtype=call.dtype, device=call.device)

    def work(tiles: Sequence[Tile]) -> Gradients:
        scratch = _Scratch(call, tiles, head_planes=3, hidden_planes=2)
        sums = Gradients(call, terms, tiles)
        for tile in tiles:
            if tile.keys == 0:
                original_rows(dq, tile).zero_()
            else:
                _backward_tile(call, tile, terms, scratch, sums, outcome, dq)
        return sums

    first, *others = run_shares(work, call.shares(backward=True), device=dq.device)
    for other in others:
        first.add_(other)
    return dq, first


def _backward_tile(
    call: Call, tile: Tile, terms: Terms, scratch: "_Scratch", sums: Gradients, outcome: Outcome, dq: Tensor
) -> None:
    """Recompute the tile's weights P, then dL = P (dO v' - delta), through f to dA, and from there to q and k. P is not
    divided by its sum, but dO and delta are."""
    scores, weights, d_logits = (scratch.heads(tile, plane) for plane in range(3))
    d_out = call.rows_of(outcome.d_out, tile)
    call.scores(tile, scores)
    call.times_keys(d_out, call.v, tile, into=d_logits)
    for strip, columns in call.strips(tile):
        part = (x.flatten(1)[:, columns] for x in (scores, weights, d_logits))
        _backward_strip(call, strip, terms.on(strip, backward=True), scratch, sums, outcome, *part)
    d_scores = d_logits

    _add_products(call.keys_of(sums.dv, tile), call.stacked(weights).transpose(1, 2), call.stacked(d_out))
    q = call.stacked(call.rows_of(call.q, tile))
    _add_products(call.keys_of(sums.dk, tile), call.stacked(d_scores).transpose(1, 2), q)
    dq_rows = torch.bmm(call.stacked(d_scores), call.keys_of(call.k, tile)).view(*d_scores.shape[:-1], -1)
    original_rows(dq, tile).copy_(dq_rows.mul_(call.scale).flip(2))


def _backward_strip(
    call: Call,
    strip: Tile,
    terms: TileTerms,
    scratch: "_Scratch",
    sums: Gradients,
    outcome: Outcome,
    scores: Float[Tensor, "h c"],
    weights: Float[Tensor, "h c"],
    d_logits: Float[Tensor, "h c"],
) -> None:
    """Compute the weights, and change ``d_logits`` in place from the gradient of the weights to that of the scores."""
    hidden = call.hidden_units(scores, terms, strip, scratch.hidden(strip, 0))
    call.logits(scores, hidden, terms, strip, into=weights).sub_(call.rows_of(outcome.top, strip)).exp2_()
    on_cells(d_logits, strip).sub_(call.rows_of(outcome.delta, strip))
    d_logits.mul_(weights)
    # The gradients of a row sum to 0 (with a sink, to ``expected``). Rounding leaves a rest, such as 1e-7 if one key
    # has the whole weight. It is subtracted, because it would be multiplied by biases, which may be 1e7.
    rest = on_cells(d_logits, strip).sum(-1, keepdim=True)
    if outcome.expected is not None:
        rest.sub_(call.rows_of(outcome.expected, strip))
    rest.div_(call.rows_of(outcome.total, strip))
    on_cells(d_logits, strip).addcmul_(on_cells(weights, strip), rest, value=-1)
    if call.mixer is None or sums.mixer is None or hidden is None:
        sums.terms.add_tile(strip, terms, on_cells(d_logits, strip), None)
        return
    d_hidden = scratch.hidden(strip, 1)
    torch.mm(call.mixer.w2.t(), d_logits, out=d_hidden)
    # The activation keeps the sign, so its result determines the slope.
    _leaky_backward(d_hidden, hidden, LEAKY_SLOPE, True, grad_input=d_hidden)
    sums.mixer.w2.addmm_(d_logits, hidden.t())
    sums.mixer.wa_transposed.addmm_(scores, d_hidden.t())
    sums.terms.add_tile(strip, terms, on_cells(d_logits, strip), on_cells(d_hidden, strip))
    d_logits.addmm_(call.mixer.wa.t(), d_hidden)


class _Scratch:
    """One worker's buffers, allocated once, for its largest tile."""

    def __init__(self, call: Call, tiles: Sequence[Tile], *, head_planes: int, hidden_planes: int) -> None:
        self._heads, self._units, self._line = call.heads, call.hidden, CACHE_LINE // call.dtype.itemsize
        cells = max((tile.cells for tile in tiles), default=0)
        strip = max((strip.cells for tile in tiles for strip, _ in call.strips(tile)), default=0) if call.hidden else 0

        def new(size: int) -> Tensor:
            return torch.empty(size, dtype=call.dtype, device=call.device)

        self._head_planes = [new(self._heads * cells) for _ in range(head_planes)]
        self._hidden_planes = [new(self._units * self._odd_lines(strip)) for _ in range(hidden_planes)]

    def heads(self, tile: Tile, which: int = 0) -> Float[Tensor, "h i r k"]:
        size = self._heads * tile.cells
        return self._head_planes[which][:size].view(self._heads, tile.items, tile.rows, tile.keys)

    def hidden(self, strip: Tile, which: int = 0) -> Float[Tensor, "D c"]:
        return self._hidden_planes[which].as_strided((self._units, strip.cells), (self._odd_lines(strip.cells), 1))

    def _odd_lines(self, cells: int) -> int:
        """The distance of two units: an odd number of cache lines. At a multiple of 4 kB, as for a power of two of
        keys, all units of a cell would compete for the same cache sets: products take 1.5 times as long."""
        return (-(-cells // self._line) | 1) * self._line


def original_rows(x: Float[Tensor, "b h q *n"], tile: Tile) -> Float[Tensor, "h i r *n"]:
    return x[tile.b0 : tile.b1, :, tile.i0 : tile.i1].transpose(0, 1)


def join_parts(parts: Mapping[int, Float[Tensor, "h i *n"]]) -> Float[Tensor, "b h *n"]:
    return torch.cat([parts[part].transpose(0, 1) for part in sorted(parts)]).contiguous()


def on_cells(x: Float[Tensor, "n c"], strip: Tile) -> Float[Tensor, "n i r k"]:
    return x.view(len(x), strip.items, strip.rows, strip.keys)


def _add_products(total: Float[Tensor, "n a b"], x: Float[Tensor, "n a c"], y: Float[Tensor, "n c b"]) -> None:
    """total += x y. Torch adds products one by one if ``total`` is not contiguous, which is slow for many."""
    if total.is_contiguous() or len(total) <= MANY_PRODUCTS:
        total.baddbmm_(x, y)
    else:
        total.add_(torch.bmm(x, y))
