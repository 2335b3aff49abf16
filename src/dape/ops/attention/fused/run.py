"""Calls of the compiled kernel on torch tensors: everything in float32, on the CPU."""

import functools
import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dape.ops.attention.engines.base import OfRowsAndKeys, RowBlock
from dape.ops.attention.fused import library
from dape.ops.attention.fused.library import KEY_STRIPS, ROWS, WIDTH_STRIPS, consecutive, pack, pointer, view

FEW_ROWS = 8
"""Up to this number of queries, as in decoding, keys and values are not packed: packing costs more than it saves."""
MANY_ITEMS = 4
"""From this number of items per thread on, each thread computes whole items and packs them in its own memory."""
SHARED_ITEMS, SHARED_BYTES = 16, 4 << 20
"""With at least this number of items, and cells that stay in a core's cache, :class:`SharedRamps` are faster than ramps
evaluated for every item: a training step of dape-fire takes 0.85 to 0.9 of the time."""
LOG2_E = math.log2(math.e)
MAX_PARTS = 16
"""Largest number of parts of an item's rows. Each part needs memory for its own sums of the gradients of k and v."""


@dataclass(frozen=True)
class Term:
    """``static`` (in base 2, -inf where hidden) or ``pre`` in the kernel's layout: the keys of a row are consecutive,
    and a vector beyond the last key may be read."""

    data: Float[Tensor, "c n"] | Float[Tensor, "c #i r k"]
    """The last axis is padded."""
    columns: int
    """Length of the last dimension without the padding."""
    start: int
    """Index at which row 0 begins."""
    item: int
    row: int

    @classmethod
    def by_lag(cls, table: Float[Tensor, "c n"]) -> "Term":
        """A table from the largest lag downwards. Each row begins one entry before the row above it."""
        data = torch.nn.functional.pad(table.float(), (0, library.lanes()))
        return cls(data, table.shape[1], start=0, item=0, row=-1)

    @classmethod
    def by_cell(cls, x: Float[Tensor, "c #i r k"], beyond: float) -> "Term":
        """A term evaluated for every row and key, shared by the items or not; padded with ``beyond``."""
        data, missing = x.float(), -x.shape[-1] % library.lanes()
        data = (torch.nn.functional.pad(data, (0, missing), value=beyond) if missing else data).contiguous()
        return cls(data, x.shape[3], start=0, item=data.stride(1) if x.shape[1] > 1 else 0, row=data.stride(2))

    def view(self, data: Tensor | None = None) -> library.View:
        """A view of the term, or of sums laid out like it."""
        at = (self.data if data is None else data).data_ptr() + 4 * self.start
        return library.View(at, self.item, self.data.stride(0), self.row)

    def zeros(self, threads: int) -> Float[Tensor, "t c *n"]:
        return library.zeros(threads, *self.data.shape)

    def total(self, sums: Float[Tensor, "t c *n"]) -> Float[Tensor, "c *n"]:
        return _total(sums)[..., : self.columns]


@dataclass(frozen=True)
class Terms:
    fixed: Term
    pre: Term | None
    learns_fixed: bool = True
    """Whether the backward pass computes the gradient of ``fixed``."""

    def from_largest_lag(self, first: int, queries: int, *, learns_fixed: bool = True) -> "Terms":
        """Tables over lags, for rows whose last one has key 0 at entry ``first``."""
        start = first + queries - 1
        pre = None if self.pre is None else replace(self.pre, start=start)
        return Terms(replace(self.fixed, start=start), pre, learns_fixed)

    def enter(self, call: library.Call) -> None:
        call.fixed = self.fixed.view()
        call.pre = view(None) if self.pre is None else self.pre.view()

    def sums(self, batch: int, threads: int) -> "_TermSums":
        return _TermSums(self, threads)


class _TermSums:
    """Gradients of :class:`Terms`, summed by each thread separately."""

    def __init__(self, of: Terms, threads: int) -> None:
        self._of = of
        self._fixed = of.fixed.zeros(threads) if of.learns_fixed else None
        self._pre = None if of.pre is None else of.pre.zeros(threads)

    def enter(self, backward: library.Backward) -> None:
        if self._fixed is not None:
            backward.d_fixed, backward.fixed_span = self._of.fixed.view(self._fixed).at, self._fixed[0].numel()
        if self._pre is not None and self._of.pre is not None:
            backward.d_pre, backward.pre_span = self._of.pre.view(self._pre).at, self._pre[0].numel()

    def total(self) -> tuple[Tensor | None, Tensor | None]:
        return (
            None if self._fixed is None else self._of.fixed.total(self._fixed),
            None if self._pre is None or self._of.pre is None else self._of.pre.total(self._pre),
        )


@dataclass(frozen=True)
class Ramps:
    """``static`` (in base 2) and ``pre`` as functions of ``table[lag] * rows[row]``, in float32. The kernel applies the
    causal mask."""

    table: Float[Tensor, " n"]
    """From the largest lag downwards, padded as other tables."""
    rows: Float[Tensor, "#b q"]
    kinks: Float[Tensor, " w"]
    slopes: Float[Tensor, "p c"]
    levels: Float[Tensor, "p c"]
    """The channels are the heads, then the hidden units."""
    heads: int
    start: int
    """Index in the table at which row 0 begins."""

    @classmethod
    def of(
        cls,
        table: Float[Tensor, " n"],
        kinks: Float[Tensor, " w"],
        static: Float[Tensor, "2 p h"],
        pre: Float[Tensor, "2 p D"] | None,
    ) -> "Ramps":
        """Ramps without rows; :meth:`on_rows` sets them."""
        laid_out = static * LOG2_E if pre is None else torch.cat([static * LOG2_E, pre], dim=-1)
        slopes, levels = laid_out.float().contiguous()
        data = torch.nn.functional.pad(table.float(), (0, library.lanes()))
        return cls(data, library.empty(0, 0), kinks.float().contiguous(), slopes, levels, static.shape[-1], 0)

    def on_rows(self, rows: Float[Tensor, "#b q"], first: int) -> "Ramps":
        """Ramps for rows whose last one has key 0 at entry ``first`` of the table."""
        return replace(self, rows=rows.float().contiguous(), start=first + rows.shape[-1] - 1)

    def enter(self, call: library.Call) -> None:
        call.ramp = library.Ramp(
            table=self.table.data_ptr() + 4 * self.start,
            rows=self.rows.data_ptr(),
            item=self.rows.stride(0) if len(self.rows) > 1 else 0,
            kinks=self.kinks.data_ptr(),
            pieces=len(self.slopes),
            slopes=self.slopes.data_ptr(),
            levels=self.levels.data_ptr(),
        )

    def sums(self, batch: int, threads: int) -> "_RampSums":
        return _RampSums(self, batch, threads)


class _RampSums:
    """Gradients of :class:`Ramps`, summed by each thread separately."""

    def __init__(self, of: Ramps, batch: int, threads: int) -> None:
        self._of = of
        self._table = library.zeros(threads, len(of.table))
        self._rows = library.zeros(batch, of.rows.shape[1])
        self._slopes, self._levels = (library.zeros(threads, *of.slopes.shape) for _ in range(2))

    def enter(self, backward: library.Backward) -> None:
        backward.d_table = self._table.data_ptr() + 4 * self._of.start
        backward.table_span, backward.d_rows = self._table.shape[1], self._rows.data_ptr()
        backward.d_slopes, backward.d_levels = self._slopes.data_ptr(), self._levels.data_ptr()

    def total(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Gradients of static and pre [2, pieces, channel], of the table and of the rows."""
        of, both = self._of, torch.stack([_total(self._slopes), _total(self._levels)])
        pre = both[..., of.heads :] if both.shape[-1] > of.heads else None
        rows = self._rows if len(of.rows) == len(self._rows) else self._rows.sum(0, keepdim=True)
        return both[..., : of.heads], pre, _total(self._table)[: -library.lanes()], rows


class SharedRamps:
    """Ramps that many items share, evaluated once for all of them. Their gradients are those of the items' sum."""

    def __init__(self, ramps: Ramps, queries: int, keys: int, causal_offset: int | None) -> None:
        channels = ramps.slopes.shape[1]
        self.ramps = ramps
        # The channels of a row are neighbours, because a row is computed at a time.
        self.cells = library.empty(queries, channels, library.padded(keys))
        self._shape = dict(
            batch=1, heads=ramps.heads, hidden=channels - ramps.heads, queries=queries, keys=keys,
            threads=torch.get_num_threads(), causal=causal_offset is not None, offset=causal_offset or 0,
        )  # fmt: skip
        library.run("dape_ramp_cells", self._call())

    @staticmethod
    def pay(ramps: Ramps, items: int, queries: int, keys: int) -> bool:
        small = 4 * ramps.slopes.shape[1] * queries * keys <= SHARED_BYTES
        return len(ramps.rows) == 1 and items >= SHARED_ITEMS and small

    def _call(self) -> library.Call:
        call = library.Call(**self._shape)
        self.ramps.enter(call)
        self.enter(call)
        return call

    def enter(self, call: library.Call) -> None:
        row, channel, _ = self.cells.stride()
        call.fixed, call.pre = (library.View(at, 0, channel, row) for at in self.starts(self.cells))

    def starts(self, cells: Float[Tensor, "q c n"]) -> tuple[int, int]:
        """Addresses of static and pre in ``cells``."""
        return cells.data_ptr(), cells.data_ptr() + 4 * self.ramps.heads * cells.stride(1)

    def sums(self, batch: int, threads: int) -> "_SharedRampSums":
        return _SharedRampSums(self, threads)


class _SharedRampSums:
    """Gradients of the cells of :class:`SharedRamps`, summed by each thread separately."""

    def __init__(self, of: SharedRamps, threads: int) -> None:
        self._of, self._cells = of, library.zeros(threads, *of.cells.shape)

    def enter(self, backward: library.Backward) -> None:
        self._point(backward, self._cells[0])

    def _point(self, backward: library.Backward, cells: Float[Tensor, "q c n"]) -> None:
        backward.d_fixed, backward.d_pre = self._of.starts(cells)
        backward.fixed_span = backward.pre_span = cells.numel()

    def total(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """As of :class:`Ramps`."""
        call, backward, total = self._of._call(), library.Backward(), _total(self._cells)
        sums = self._of.ramps.sums(1, call.threads)
        self._point(backward, total)
        sums.enter(backward)
        library.run("dape_ramp_backward", call, backward)
        return sums.total()


AnyTerms = Terms | Ramps | SharedRamps


class SeparableTerms:
    """:class:`OfRowsAndKeys` in the kernel's layout, and their gradients."""

    def __init__(self, given: OfRowsAndKeys) -> None:
        # The distance of channels is not a power of two, so that they do not share cache sets.
        missing = library.whole_blocks(given.keys.shape[-1]) - given.keys.shape[-1] + library.LINE
        self._keys_count = given.keys.shape[-1]

        def padded(x: Tensor) -> Tensor:
            return torch.nn.functional.pad(x, (0, missing)).contiguous()

        self._low = None
        rows, keys = given
        if keys.dtype != torch.float32:
            (rows, rows_low), (keys, keys_low) = given.halves(torch.float32)
            self._low = rows_low.contiguous(), padded(keys_low)
        self._rows, self._keys = rows.contiguous(), padded(keys)

    def enter(self, call: library.Call, first_row: int) -> None:
        def strides(x: Tensor) -> tuple[int, int]:
            return (x.stride(0) if len(x) > 1 else 0), x.stride(1)

        rows_low, keys_low = (0, 0) if self._low is None else (x.data_ptr() for x in self._low)
        rows, rows_low = self._rows.data_ptr() + 4 * first_row, rows_low and rows_low + 4 * first_row
        keys = (self._keys.data_ptr(), keys_low)
        call.separable = library.Separable(rows, rows_low, *strides(self._rows), *keys, *strides(self._keys))

    def begin_sums(self, batch: int, parts: int) -> None:
        _, channels, queries = self._rows.shape
        self._d_rows = library.zeros(batch, channels, queries)
        self._d_keys = library.zeros(parts, batch, channels, self._keys.shape[-1])

    def enter_sums(self, backward: library.Backward, first_row: int) -> None:
        at = self._d_rows.data_ptr() + 4 * first_row
        backward.d_of_rows = library.View(at, self._d_rows.stride(0), self._d_rows.stride(1), 1)
        backward.d_of_keys = self._d_keys.data_ptr()

    def total(self) -> OfRowsAndKeys:
        found = (self._d_rows, _total(self._d_keys)[..., : self._keys_count])
        shared = (len(self._rows) == 1, len(self._keys) == 1)
        return OfRowsAndKeys(*(x.sum(0, keepdim=True) if one else x for x, one in zip(found, shared, strict=True)))


class Mixer:
    """The matrices of f, and their versions for scores and logits in base 2."""

    def __init__(self, wa: Float[Tensor, "D h"], w2: Float[Tensor, "h D"]) -> None:
        self.wa, self.w2 = wa.float().contiguous(), w2.float().contiguous()
        self.wa_base2, self.w2_base2 = self.wa / LOG2_E, self.w2 * LOG2_E


class Attention:
    """q, k and v for the kernel. Terms are given for all rows at once, or for blocks of rows."""

    def __init__(
        self,
        q: Float[Tensor, "b h q d"],
        k: Float[Tensor, "b g k d"],
        v: Float[Tensor, "b g k e"],
        mixer: Mixer | None,
        *,
        causal_offset: int | None,
        key_padding_mask: Tensor | None,
        separable: OfRowsAndKeys | None = None,
    ) -> None:
        self.separable = None if separable is None else SeparableTerms(separable)
        self.q_shape, self.k_shape, self.value_width = q.shape, k.shape, v.shape[-1]
        self.mixer, self.causal_offset = mixer, causal_offset
        self.threads = torch.get_num_threads()
        self.q, self.k, self.v = consecutive(q), consecutive(k), consecutive(v)
        self.factor = LOG2_E / math.sqrt(q.shape[-1])
        self.few_rows = q.shape[2] <= FEW_ROWS
        self.mask = self._mask(key_padding_mask)

    @property
    def apart(self) -> bool:
        """Whether each thread packs its own items. Otherwise everything is packed here."""
        return self.q_shape[0] >= MANY_ITEMS * self.threads

    @functools.cached_property
    def q_rows(self) -> Tensor:
        return pack(self.q, ROWS, self.factor)

    @functools.cached_property
    def k_panels(self) -> Tensor:
        return pack(self.k, KEY_STRIPS)

    @functools.cached_property
    def v_rows(self) -> Tensor:
        return pack(self.v, WIDTH_STRIPS)

    def _mask(self, padding: Tensor | None) -> Tensor | None:
        """The mask with -inf at hidden keys, padded to whole blocks."""
        if padding is None:
            return None
        keys = self.k_shape[2]
        mask = library.zeros(self.q_shape[0], library.whole_blocks(keys))
        mask[:, :keys].masked_fill_(padding, -math.inf)
        return mask

    def forward(self, terms: AnyTerms, out: Tensor, softmax: Tensor, block: RowBlock) -> None:
        """Fill the rows of ``out`` [b, h, q, e] and ``softmax`` [b, h, q, 2]."""
        out, softmax = out[:, :, block.part], softmax[:, :, block.part]
        call = self._call(terms, block.first, out, softmax, apart=self.apart and not self.few_rows)
        if not self.few_rows:
            if not call.apart:
                call.k_panels, call.v_rows = view(self.k_panels), view(self.v_rows)
            library.run("dape_forward", call)
            return
        batch, heads, rows, _ = softmax.shape
        call.splits = self._splits()
        # For each part of the keys: the output so far, the largest logit and the sum of weights.
        size = batch * call.splits * heads * rows * (library.padded(self.value_width) + 2)
        parts = library.empty(size)
        call.parts = parts.data_ptr()
        library.run("dape_decode", call)

    def _splits(self) -> int:
        """The number of parts of the keys: two for each thread, if there are enough keys."""
        blocks = math.ceil(self.k_shape[2] / library.block())
        return max(1, min(blocks, math.ceil(2 * self.threads / max(1, self.q_shape[0]))))

    def _call(self, terms: AnyTerms, first_row: int, out: Tensor, softmax: Tensor, *, apart: bool) -> library.Call:
        batch, heads, _, width = self.q_shape
        mixer, offset = self.mixer, self.causal_offset
        rows = softmax.shape[2]
        call = library.Call(
            *(batch, heads, self.k_shape[1], rows, self.k_shape[2], width, self.value_width),
            hidden=0 if mixer is None else len(mixer.wa),
            threads=self.threads,
            causal=offset is not None,
            offset=0 if offset is None else offset + first_row,
            wa=None if mixer is None else mixer.wa_base2.data_ptr(),
            w2=None if mixer is None else mixer.w2_base2.data_ptr(),
            mask=pointer(self.mask),
            q=view((self.q if apart else self.q_rows)[:, :, first_row : first_row + rows]),
            k=view(self.k),
            v=view(self.v),
            out=view(out),
            softmax=view(softmax),
            apart=apart,
            few_rows=self.few_rows,
            factor=self.factor,
        )
        terms.enter(call)
        if self.separable is not None:
            self.separable.enter(call, first_row)
        return call

    def backward(self, grad: Tensor, out: Tensor, softmax: Tensor) -> "BackwardPass":
        return BackwardPass(self, grad, out, softmax)


class BackwardPass:
    """The gradients, summed over the calls of :meth:`rows`."""

    def __init__(self, forward: Attention, grad: Tensor, out: Tensor, softmax: Tensor) -> None:
        self.of, self.softmax = forward, softmax
        # Divided by the sum of a row's weights, so that the kernel need not divide the weights.
        self.grad, self.out = consecutive(grad) / softmax[..., 1:], consecutive(out)
        batch, heads, queries, width = forward.q_shape
        threads = forward.threads
        self.parts = 1 if forward.apart or batch >= threads else min(MAX_PARTS, math.ceil(threads / max(1, batch)))
        self.d_q = library.empty(batch, queries, heads, width).transpose(1, 2)
        self._sums = _SumsOfItems(self) if forward.apart else _SumsOfParts(self)
        hidden = 0 if forward.mixer is None else len(forward.mixer.wa)
        self._d_wa, self._d_w2 = library.zeros(threads, hidden, heads), library.zeros(threads, heads, hidden)
        if forward.separable is not None:
            forward.separable.begin_sums(batch, self.parts)

    def rows(self, terms: AnyTerms, block: RowBlock) -> tuple[Tensor | None, ...]:
        """Add the gradients of a block of rows. Returns those of its terms, in their layout."""
        of, part = self.of, block.part
        sums, mixer = terms.sums(of.q_shape[0], of.threads), of.mixer
        call = of._call(terms, block.first, self.out[:, :, part], self.softmax[:, :, part], apart=of.apart)
        backward = library.Backward(
            wa_plain=None if mixer is None else mixer.wa.data_ptr(),
            w2_plain=None if mixer is None else mixer.w2.data_ptr(),
            parts=self.parts,
            d_q=view(self.d_q[:, :, part]),
            d_wa=self._d_wa.data_ptr(),
            d_w2=self._d_w2.data_ptr(),
        )
        sums.enter(backward)
        if of.separable is not None:
            of.separable.enter_sums(backward, block.first)
        self._sums.point(call, backward, part)
        library.run("dape_backward", call, backward)
        return sums.total()

    @property
    def d_k(self) -> Float[Tensor, "b g k d"]:
        return self._sums.d_k

    @property
    def d_v(self) -> Float[Tensor, "b g k e"]:
        return self._sums.d_v

    @property
    def d_separable(self) -> OfRowsAndKeys | None:
        return None if self.of.separable is None else self.of.separable.total()

    # The kernel computes the gradients of k and wa with scores in base 2, hence the division by log2 e.

    @property
    def d_wa(self) -> Float[Tensor, "D h"]:
        return self._d_wa.sum(0) / LOG2_E

    @property
    def d_w2(self) -> Float[Tensor, "h D"]:
        return self._d_w2.sum(0)


class _SumsOfItems:
    """Gradients of k and v when threads take whole items."""

    def __init__(self, of: BackwardPass) -> None:
        self._grad, self._begun = of.grad, False
        self.d_k, self.d_v = (library.empty(*x.transpose(1, 2).shape).transpose(1, 2) for x in (of.of.k, of.of.v))

    def point(self, call: library.Call, backward: library.Backward, part: slice) -> None:
        backward.d_out = view(self._grad[:, :, part])
        backward.to_k, backward.to_v, backward.added = view(self.d_k), view(self.d_v), self._begun
        self._begun = True


class _SumsOfParts:
    """Gradients of k and v when everything is packed here. Threads share an item's rows; each part has its own sums."""

    def __init__(self, of: BackwardPass) -> None:
        self._of = forward = of.of
        self._d_out, self._delta = pack(of.grad, ROWS), (of.grad * of.out).sum(-1)
        self._k_rows, self._v_panels = pack(forward.k, WIDTH_STRIPS), pack(forward.v, KEY_STRIPS)
        batch, heads, keys, _ = forward.k_shape
        room = (of.parts, batch, heads, library.whole_blocks(keys))
        widths = (forward.q_shape[-1], forward.value_width)
        self._d_k, self._d_v = (library.zeros(*room, library.padded(width)) for width in widths)

    def point(self, call: library.Call, backward: library.Backward, part: slice) -> None:
        call.k_panels = view(self._of.k_panels)
        backward.k_rows, backward.v_panels = view(self._k_rows), view(self._v_panels)
        backward.d_out, backward.delta = view(self._d_out[:, :, part]), view(self._delta[:, :, part].unsqueeze(-1))
        backward.d_k, backward.d_v = self._d_k.data_ptr(), self._d_v.data_ptr()

    @property
    def d_k(self) -> Float[Tensor, "b g k d"]:
        keys, width = self._of.k_shape[2:]
        return _total(self._d_k)[:, :, :keys, :width] / LOG2_E

    @property
    def d_v(self) -> Float[Tensor, "b g k e"]:
        return _total(self._d_v)[:, :, : self._of.k_shape[2], : self._of.value_width]


def _total(parts: Float[Tensor, "p *s"]) -> Float[Tensor, "*s"]:
    return parts[0] if len(parts) == 1 else parts.sum(0)  # avoids a copy of a single part
