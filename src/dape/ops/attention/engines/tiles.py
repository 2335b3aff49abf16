"""The engine of ``tiles.py``: any device and precision, in PyTorch.

The rows of a tile are reversed, so that row r and key j have the index ``start + r + j`` in a table over lags. The
table is read through an overlapping view (strides 1, 1) without a copy. The causal mask is -inf in the table at
negative lags. The gradient of an entry is the sum over an anti-diagonal, which is read through a view too.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from dape.ops.attention import tiles
from dape.ops.attention.engines.base import (
    NO_ROW_KERNEL,
    Call,
    CellTerms,
    Found,
    LagTerms,
    OfRowsAndKeys,
    RampTerms,
    Tables,
    Verdict,
)
from dape.ops.attention.sinks import under_largest
from dape.ops.attention.tiles import LOG2_E, TermSums, TileTerms, join_parts
from dape.ops.attention.tiles import Call as TileCall
from dape.ops.attention.tiling import Tile
from dape.positional.base import ScoreForm
from dape.positional.grid import Grid
from dape.positional.row_forms import RowForm


class Tiles:
    name = "blocked"
    heads_beside = gradient_heads_beside = False
    takes_ramps = takes_separable = takes_sinks = True

    def serves(self, device: torch.device) -> bool:
        return True

    def judge(self, q: Tensor, k: Tensor, v: Tensor, grid: Grid, form: ScoreForm, *, tables: bool) -> Verdict:
        return Verdict(True, "")

    def judge_rows(self, q: Tensor, k: Tensor, v: Tensor, grid: Grid, form: RowForm) -> Verdict:
        return Verdict(False, NO_ROW_KERNEL)

    def forward(self, call: Call, terms: Tables | CellTerms) -> tuple[Tensor, Tensor]:
        return tiles.run_forward(*_for_tiles(call, terms))

    def backward(self, call: Call, terms: Tables | CellTerms, grad: Tensor, out: Tensor, softmax: Tensor) -> Found:
        sink = None if call.sinks is None else under_largest(call.sinks, softmax)
        d_q, sums = tiles.run_backward(*_for_tiles(call, terms), grad, out, softmax, sink)
        d_wa, d_w2 = (None, None) if sums.mixer is None else (sums.mixer.wa, sums.mixer.w2)
        own, separable = sums.terms, None
        if isinstance(own, SeparableSums):
            own, separable = own.inner, own.total()
        of_terms = own.total() if isinstance(own, _TableSums | RampSums) else own
        return Found(d_q, join_parts(sums.dk), join_parts(sums.dv), d_wa, d_w2, of_terms, separable)


def _for_tiles(call: Call, terms: Tables | CellTerms) -> tuple[TileCall, tiles.Terms]:
    in_parts = TileCall(call.q, call.k, call.v, call.wa, call.w2, causal_offset=call.causal_offset)
    if isinstance(terms, LagTerms):
        on_tiles = LagTiles(in_parts, call, terms)
    elif isinstance(terms, RampTerms):
        on_tiles = RampTiles(in_parts, terms, LagTiles(in_parts, call, LagTerms(None, None)))
    else:
        on_tiles = terms
    return in_parts, on_tiles if call.separable is None else SeparableTiles(in_parts, call.separable, on_tiles)


class LagTiles:
    shared_by_items = False  # views of tables cost nothing

    def __init__(self, call: TileCall, given: Call, terms: LagTerms) -> None:
        self.call, self.offset, self.hidden_from = call, given.causal_offset, given.first_hidden
        self.static, pre, padding = terms.static, terms.pre, given.key_padding_mask
        self.pre = None if pre is None else pre.to(call.dtype).contiguous()
        self.table = self._logit_table()
        self.padding = None
        if padding is not None:
            zero = torch.zeros(padding.shape, dtype=call.dtype, device=call.device)
            self.padding = zero.masked_fill_(padding, -math.inf).unsqueeze(1)

    def _logit_table(self) -> Float[Tensor, "h n"] | None:
        """The static table in base 2, -inf where the causal mask hides. None if there is neither table nor mask."""
        call = self.call
        if self.static is not None:
            table = (self.static.to(call.dtype) * LOG2_E).contiguous()
        elif self.hidden_from is not None:
            table = torch.zeros(1, call.queries + call.keys - 1, dtype=call.dtype, device=call.device)
        else:
            return None
        if self.hidden_from is not None:
            table[:, self.hidden_from :] = -math.inf
        return table

    def start(self, tile: Tile) -> int:
        """The table index of the tile's first cell: its last row and key 0."""
        return self.call.queries - tile.i1

    def view(self, table: Float[Tensor, "c n"], tile: Tile) -> Float[Tensor, "c 1 r k"]:
        """The table on every cell of the tile, as a view."""
        where = table.storage_offset() + self.start(tile)
        return table.as_strided((len(table), 1, tile.rows, tile.keys), (table.stride(0), 0, 1, 1), where)

    def add_diagonals(self, total: Float[Tensor, "c n"], x: Float[Tensor, "c r k"], tile: Tile) -> None:
        """Sum the gradients of a tile's cells into those of the table; the reverse of :meth:`view`."""
        # A causal tile whose keys reach its last row's own or further is zero beyond its main anti-diagonal.
        corner_hidden = self.offset is not None and tile.keys >= self.offset + tile.i1
        sums = _diagonals_of_triangle(x) if corner_hidden else _diagonals(x)
        start = self.start(tile)
        total[:, start : start + sums.shape[1]].add_(sums)

    def on(self, tile: Tile, *, backward: bool = False) -> TileTerms:
        static = None if self.table is None else self.view(self.table, tile)
        if self.padding is not None:
            padding = self.padding[tile.b0 : tile.b1, :, : tile.keys]
            static = padding if static is None else static + padding
        return TileTerms(static=static, pre=None if self.pre is None else self.view(self.pre, tile))

    def sums(self) -> "_TableSums":
        return _TableSums(self)


class _TableSums:
    def __init__(self, terms: LagTiles) -> None:
        self._terms = terms

        def zeros(table: Tensor | None) -> Tensor | None:
            return None if table is None else torch.zeros(table.shape, dtype=terms.call.dtype, device=table.device)

        self.static, self.pre = zeros(terms.static), zeros(terms.pre)

    def add_tile(self, tile: Tile, terms: TileTerms, d_logits: Tensor, d_hidden: Tensor | None) -> None:
        for total, x in ((self.static, d_logits), (self.pre, d_hidden)):
            if total is not None and x is not None:
                self._add_diagonals(total, x, tile)

    def _add_diagonals(self, total: Float[Tensor, "c n"], x: Float[Tensor, "c i r k"], tile: Tile) -> None:
        self._terms.add_diagonals(total, x.squeeze(1) if tile.items == 1 else x.sum(1), tile)

    def total(self) -> tuple[Tensor | None, Tensor | None]:
        return self.static, self.pre

    def add_(self, other: TermSums) -> None:
        assert isinstance(other, _TableSums)
        for mine, theirs in ((self.static, other.static), (self.pre, other.pre)):
            if mine is not None and theirs is not None:
                mine.add_(theirs)


class RampTiles:
    """A piecewise linear function of u is a sum, over the kinks below u, of the changes of slope and level there.

    That is a product of the changes, [channel, 2 changes], with [u where above; 1 where above] on the cells. Only kinks
    that u can reach are used, for FIRE about a quarter.
    """

    def __init__(self, call: TileCall, terms: RampTerms, lags: LagTiles) -> None:
        self.call, self.given, self.lags = call, terms, lags
        self.table = terms.table.to(call.dtype).unsqueeze(0).contiguous()
        self.rows = terms.rows.to(call.dtype).flip(1)
        kinks = terms.kinks.to(call.dtype)
        corners = [t * r for t in self.table.aminmax() for r in self.rows.aminmax()]
        self.first = int((kinks < min(corners)).sum())
        self.kinks = kinks[self.first : self.first + int(((kinks >= min(corners)) & (kinks < max(corners))).sum())]
        changes = [None if x is None else self._changes(x) for x in (terms.static, terms.pre)]
        self.static, self.pre = changes

    @property
    def shared_by_items(self) -> bool:
        return len(self.rows) == 1 and self.lags.padding is None

    @property
    def pieces(self) -> slice:
        return slice(self.first, self.first + len(self.kinks) + 1)

    def _changes(self, x: Float[Tensor, "2 p c"]) -> Float[Tensor, "c 2m"]:
        part = x[:, self.pieces]
        changes = torch.cat([part[:, :1], part.diff(dim=1)], dim=1)
        return changes.flatten(0, 1).t().to(self.call.dtype).contiguous()

    def rows_of(self, tile: Tile) -> Float[Tensor, "#i r 1"]:
        rows = self.rows if len(self.rows) == 1 else self.rows[tile.b0 : tile.b1]
        return rows[:, self.call.queries - tile.i1 : self.call.queries - tile.i0].unsqueeze(-1)

    def basis(self, tile: Tile) -> tuple[Float[Tensor, "m #i r k"], Float[Tensor, "2m c"]]:
        """Whether u is above each kink (the first is below all u), and the matrix that changes are multiplied by."""
        u = self.lags.view(self.table, tile).squeeze(0) * self.rows_of(tile)
        above = torch.cat([torch.ones_like(u).unsqueeze(0), (u > self.kinks.view(-1, 1, 1, 1)).to(u.dtype)])
        return above, torch.cat([above * u, above]).flatten(1)

    def on(self, tile: Tile, *, backward: bool = False) -> TileTerms:
        above, basis = self.basis(tile)
        assert self.static is not None
        static = (self.static * LOG2_E @ basis).view(-1, *above.shape[1:])
        hidden = self.lags.on(tile).static
        pre = None if self.pre is None else (self.pre @ basis).view(-1, *above.shape[1:])
        return TileTerms(static=static if hidden is None else static + hidden, pre=pre)

    def sums(self) -> "RampSums":
        return RampSums(self)


class RampSums:
    def __init__(self, terms: RampTiles) -> None:
        self._terms = terms
        self._changes = [None if x is None else torch.zeros_like(x) for x in (terms.static, terms.pre)]
        self._table, self._rows = torch.zeros_like(terms.table), torch.zeros_like(terms.rows)

    def add_tile(self, tile: Tile, terms: TileTerms, d_logits: Tensor, d_hidden: Tensor | None) -> None:
        own, count = self._terms, len(self._terms.kinks) + 1
        above, basis = own.basis(tile)
        d_u = torch.zeros_like(above[0])
        for total, changes, x in zip(self._changes, (own.static, own.pre), (d_logits, d_hidden), strict=True):
            if total is None or changes is None or x is None:
                continue
            flat = (x.sum(1) if len(own.rows) == 1 else x).flatten(1)
            total.addmm_(flat, basis.t())
            d_u += ((changes[:, :count].t() @ flat).view(above.shape) * above).sum(0)
        own.lags.add_diagonals(self._table, (d_u * own.rows_of(tile)).sum(0, keepdim=True), tile)
        items = slice(None) if len(own.rows) == 1 else slice(tile.b0, tile.b1)
        part = self._rows[items, own.call.queries - tile.i1 : own.call.queries - tile.i0]
        part.add_((d_u * own.lags.view(own.table, tile).squeeze(0)).sum(-1))

    def add_(self, other: TermSums) -> None:
        assert isinstance(other, RampSums)
        mine, theirs = ((*x._changes, x._table, x._rows) for x in (self, other))
        for a, b in zip(mine, theirs, strict=True):
            if a is not None and b is not None:
                a.add_(b)

    def total(self) -> tuple[Tensor | None, ...]:
        static, pre = (
            None if d is None or x is None else self._of_pieces(d, x)
            for d, x in zip(self._changes, (self._terms.given.static, self._terms.given.pre), strict=True)
        )
        return static, pre, self._table.squeeze(0), self._rows.flip(1)

    def _of_pieces(self, d: Float[Tensor, "c 2m"], x: Float[Tensor, "2 p c"]) -> Float[Tensor, "2 p c"]:
        d = d.t().reshape(2, -1, x.shape[2])
        found = torch.zeros(x.shape, dtype=d.dtype, device=d.device)
        # A slope is the sum of all changes up to its piece, and the next change is the difference from it.
        found[:, self._terms.pieces] = d - torch.nn.functional.pad(d, (0, 0, 0, 1))[:, 1:]
        return found


class SeparableTiles:
    """Other terms with a number of each row and key added (:class:`OfRowsAndKeys`)."""

    shared_by_items = False

    def __init__(self, call: TileCall, given: OfRowsAndKeys, inner: tiles.Terms) -> None:
        self.call, self.inner = call, inner
        halves = [[x.transpose(0, 1).unsqueeze(-1) for x in half] for half in given.halves(call.dtype)]
        self.rows = [x.flip(2) for x in halves[0]]  # [c, #b, q, 1], reversed as in tiles
        self.keys = [x.transpose(2, 3) for x in halves[1]]  # [c, #b, 1, k]

    def part(self, tile: Tile, x: Tensor, along: slice, dim: int) -> Tensor:
        items = slice(None) if x.shape[1] == 1 else slice(tile.b0, tile.b1)
        return x[:, items, along] if dim == 2 else x[:, items, :, along]

    def rows_of(self, tile: Tile) -> slice:
        return slice(self.call.queries - tile.i1, self.call.queries - tile.i0)

    def on(self, tile: Tile, *, backward: bool = False) -> TileTerms:
        terms, rows, keys = self.inner.on(tile, backward=backward), self.rows_of(tile), slice(tile.keys)
        halves = zip(self.rows, self.keys, strict=True)
        high, low = (self.part(tile, r, rows, 2) + self.part(tile, k, keys, 3) for r, k in halves)
        added = high.add_(low)
        static, pre = added[: self.call.heads] * LOG2_E, added[self.call.heads :]
        return TileTerms(
            static=static if terms.static is None else static + terms.static,
            pre=None if terms.pre is None else pre + terms.pre,
            bias=terms.bias,
        )

    def sums(self) -> "SeparableSums":
        return SeparableSums(self)


class SeparableSums:
    def __init__(self, terms: SeparableTiles) -> None:
        self._terms, self.inner = terms, terms.inner.sums()
        self._rows, self._keys = torch.zeros_like(terms.rows[0]), torch.zeros_like(terms.keys[0])

    def add_tile(self, tile: Tile, terms: TileTerms, d_logits: Tensor, d_hidden: Tensor | None) -> None:
        self.inner.add_tile(tile, terms, d_logits, d_hidden)
        own, heads = self._terms, len(d_logits)
        for total, along, dim in ((self._rows, own.rows_of(tile), 2), (self._keys, slice(tile.keys), 3)):
            part = own.part(tile, total, along, dim)
            for to, x in ((part[:heads], d_logits), (part[heads:], d_hidden)):
                if x is not None:
                    to.add_(x.sum(5 - dim, keepdim=True).sum_to_size(to.shape))

    def add_(self, other: TermSums) -> None:
        assert isinstance(other, SeparableSums)
        self.inner.add_(other.inner)
        self._rows.add_(other._rows)
        self._keys.add_(other._keys)

    def total(self) -> OfRowsAndKeys:
        rows, keys = self._rows.squeeze(-1).flip(2), self._keys.squeeze(2)
        return OfRowsAndKeys(rows.transpose(0, 1), keys.transpose(0, 1))


def _diagonals(x: Float[Tensor, "c r k"]) -> Float[Tensor, "c n"]:
    """Sums over the anti-diagonals r + j = 0 ... r + k - 2. Rows are padded to r + k, and read as rows of r + k - 1,
    which shifts each row by one more."""
    channels, rows, keys = x.shape
    padded = torch.nn.functional.pad(x, (0, rows)).flatten(1)
    return padded[:, : rows * (rows + keys - 1)].view(channels, rows, -1).sum(1)


def _diagonals_of_triangle(x: Float[Tensor, "c r k"]) -> Float[Tensor, "c k"]:
    """The same without padding, for x that is 0 where r + j >= k. Read as rows of length k - 1, column c holds
    r + j = c, except that the last diagonal k - 1 wraps onto column 0."""
    channels, rows, keys = x.shape
    if keys == 1:
        return x.sum(1)
    channel, start = x.stride(0), x.storage_offset()
    sums = x.as_strided((channels, rows, keys - 1), (channel, keys - 1, 1), start).sum(1)
    sums[:, 0] = x[:, 0, 0]
    last = x.as_strided((channels, rows), (channel, keys - 1), start + keys - 1).sum(1)
    return torch.cat([sums, last.unsqueeze(1)], dim=1)
