"""Calls of the kernels on torch tensors. ``engines/triton.py`` makes the position terms."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dape.ops.attention.engines.base import RowBlock
from dape.ops.attention.triton_kernels import kernels
from dape.ops.attention.triton_kernels.interpreted import INTERPRETED
from dape.ops.attention.triton_kernels.plan import Sizes, gpu_of, padded
from dape.positional.base import LEAKY_SLOPE

LOG2_E = math.log2(math.e)
ROWS = 16
"""Rows of every tile, and keys of a tile in the backward pass."""
SPLIT_ROWS, SPLIT_KEYS = 16, 256
"""Calls with at most SPLIT_ROWS rows, as in decoding, are split into programs for SPLIT_KEYS keys (whole tiles)."""
_TYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class Ramp:
    """``table[lag] * of_rows[row]``, the variable of the piecewise linear functions in :class:`Terms`."""

    table: Float[Tensor, " n"]
    of_rows: Float[Tensor, "#b q"]
    kinks: Float[Tensor, " w"]


@dataclass(frozen=True)
class Terms:
    """``static`` and ``pre`` in the kernels' layout: tables over lags, one entry per cell, or a slope and a level for
    each piece of a ramp. ``static`` is in base 2 and, except for ramps, includes f of the position alone."""

    tables: bool
    static: Float[Tensor, "h n"] | Float[Tensor, "#i h r k"] | Float[Tensor, "m 2 h"] | None
    pre: Float[Tensor, "n p"] | Float[Tensor, "#i D r k"] | Float[Tensor, "m 2 p"] | None
    start: int = 0
    """The entry of row 0 and key 0 in tables."""
    ramp: Ramp | None = None

    def strides(self) -> dict[str, int]:
        """Strides of items, channels and rows. Kernels know the strides of tables, except for one."""
        found = {"static_i": 0, "static_c": 0, "static_r": 0, "pre_i": 0, "pre_c": 0, "pre_r": 0, "of_rows_i": 0}
        if self.ramp is not None:
            found["of_rows_i"] = self.ramp.of_rows.stride(0) if len(self.ramp.of_rows) > 1 else 0
            return found
        if self.tables:
            found["static_c"] = 0 if self.static is None else self.static.stride(0)
            return found
        for name, x in (("static", self.static), ("pre", self.pre)):
            if x is not None:
                found[f"{name}_i"] = x.stride(0) if x.shape[0] > 1 else 0
                found[f"{name}_c"], found[f"{name}_r"] = x.stride(1), x.stride(2)
        return found


class Attention:
    """q, k, v and the weights of f. Terms are given for all rows at once, or for blocks of rows."""

    def __init__(
        self,
        q: Float[Tensor, "b h q d"],
        k: Float[Tensor, "b g k d"],
        v: Float[Tensor, "b g k e"],
        wa: Float[Tensor, "D h"] | None,
        w2: Float[Tensor, "h D"] | None,
        *,
        causal_offset: int | None,
        key_padding_mask: Tensor | None,
    ) -> None:
        self.q, self.k, self.v = _unit_stride(q), _unit_stride(k), _unit_stride(v)
        self.causal_offset = causal_offset
        self.padding = None if key_padding_mask is None else key_padding_mask.contiguous().view(torch.uint8)
        self.sizes = Sizes(
            heads=q.shape[1],
            group=q.shape[1] // k.shape[1],
            width=q.shape[3],
            values=v.shape[3],
            hidden=1 if wa is None else wa.shape[0],
            item_bytes=q.element_size(),
            gpu=gpu_of(q.device) or "small",
        )
        self.mixes = wa is not None
        self.wa = self.w2 = None
        self.exact_w2 = None if w2 is None else w2.float()
        if wa is not None and w2 is not None:
            hp, dp, (hidden, heads) = self.sizes.hp, self.sizes.dp, wa.shape
            self.wa = _in_two_parts(wa, (0, hp - heads, 0, dp - hidden), q.dtype)
            self.w2 = _in_two_parts(w2, (0, dp - hidden, 0, hp - heads), q.dtype)

    @property
    def keys(self) -> int:
        return self.k.shape[2]

    def constants(self, terms: Terms) -> dict[str, Any]:
        return {
            **self.sizes.constants(),
            **flags(
                mix=self.mixes,
                tables=terms.tables,
                causal=self.causal_offset is not None,
                static=terms.static is not None,
                kinks=0 if terms.ramp is None else len(terms.ramp.kinks),
                padding=self.padding is not None,
                dtype=_TYPES[self.q.dtype],
                interpreted=INTERPRETED,
            ),
        }

    def of_position(self, pre: Float[Tensor, "D *n"]) -> Float[Tensor, "h *n"]:
        """f of the position alone, without rounding. The kernels add the difference that the scores make."""
        assert self.exact_w2 is not None
        hidden = torch.nn.functional.leaky_relu(pre, LEAKY_SLOPE)
        return (self.exact_w2 @ hidden.flatten(1)).unflatten(1, pre.shape[1:])

    def inputs(self, terms: Terms, rows: slice, keys: int) -> dict[str, Any]:
        """The arguments of all kernels. Absent tensors are never read; q takes their place."""
        q = self.q[:, :, rows]
        offset = 0 if self.causal_offset is None else self.causal_offset + rows.start
        return {
            "q": q,
            "k": self.k,
            "v": self.v,
            "wa": q if self.wa is None else self.wa,
            "w2": q if self.w2 is None else self.w2,
            "static": q if terms.static is None else terms.static,
            "pre": q if terms.pre is None else terms.pre,
            "table": q if terms.ramp is None else terms.ramp.table,
            "of_rows": q if terms.ramp is None else terms.ramp.of_rows,
            "kinks": q if terms.ramp is None else terms.ramp.kinks,
            "padding": q if self.padding is None else self.padding[:, :keys].contiguous(),
            "scale": 1.0 / math.sqrt(q.shape[-1]),
            "offset": offset,
            "start": terms.start,
            "queries": q.shape[2],
            "keys": keys,
            **_strides("q", q),
            **_strides("k", self.k),
            **_strides("v", self.v),
            **terms.strides(),
        }

    def forward(self, terms: Terms, out: Tensor, softmax: Tensor, block: RowBlock) -> None:
        """Fill the rows of ``out`` [b, h, q, e] and ``softmax`` [b, h, q, 2]."""
        rows, keys = block.part, block.keys
        out, softmax = out[:, :, rows], softmax[:, :, rows]
        batch, _, queries, _ = out.shape
        split = queries <= SPLIT_ROWS and keys > 2 * SPLIT_KEYS
        parts = math.ceil(keys / SPLIT_KEYS) if split else 1
        outs, sums = out.unsqueeze(0), softmax.unsqueeze(0)
        if split:
            outs, sums = (x.new_empty(parts, *x.shape, dtype=torch.float32) for x in (out, softmax))
        arguments = self.inputs(terms, rows, keys) | {
            "out": outs,
            "softmax": sums,
            "span": SPLIT_KEYS if split else keys,
            "out_s": outs.stride(0),
            **_strides("out", outs[0]),
            "softmax_s": sums.stride(0),
            "softmax_b": sums.stride(1),
            "softmax_h": sums.stride(2),
        }
        tile = {"M": ROWS, "N": self.sizes.forward_keys}
        grid = (math.ceil(queries / ROWS), batch, parts * self.sizes.shares(self.sizes.values))
        self._launch(kernels.forward, grid, arguments, terms, tile)
        if split:
            _join(outs, sums, out, softmax)

    def backward(self, grad: Tensor, out: Tensor, softmax: Tensor) -> "BackwardPass":
        return BackwardPass(self, grad, out, softmax)

    def _launch(self, kernel, grid: tuple[int, ...], arguments: dict, terms: Terms, more: dict[str, Any]) -> None:
        kernel[grid](**arguments, **self.constants(terms), **more, num_warps=self.sizes.warps, num_stages=1)


class BackwardPass:
    """The gradients, summed over the calls of :meth:`rows`."""

    def __init__(self, forward: Attention, grad: Tensor, out: Tensor, softmax: Tensor) -> None:
        self.of, self.grad = forward, _unit_stride(grad.to(forward.q.dtype))
        self.delta = (grad.float() * out.float()).sum(-1).contiguous()
        largest, total = softmax.unbind(-1)
        # Rows that see no key have no weights.
        self.largest = largest.masked_fill(total == 0, math.inf).contiguous()
        self.inverses = total.reciprocal().masked_fill(total == 0, 0.0).contiguous()
        (batch, heads, _, _), keys, sizes = forward.q.shape, forward.keys, forward.sizes
        self.d_q = torch.zeros(forward.q.shape, dtype=torch.float32, device=grad.device)
        self._d_k = self.d_q.new_zeros(batch, heads, keys, sizes.width)
        self._d_v = self.d_q.new_zeros(batch, heads, keys, sizes.values)
        self.d_wa = self.d_q.new_zeros(sizes.hidden, heads)
        self.d_w2 = self.d_q.new_zeros(heads, sizes.hidden)

    @property
    def d_k(self) -> Float[Tensor, "b g k d"]:
        return self._d_k.unflatten(1, (-1, self.of.sizes.group)).sum(2)

    @property
    def d_v(self) -> Float[Tensor, "b g k e"]:
        return self._d_v.unflatten(1, (-1, self.of.sizes.group)).sum(2)

    def rows(self, terms: Terms, block: RowBlock) -> tuple[Tensor | None, ...]:
        """Add the gradients of a block of rows. Returns those of its terms: for tables ``[h, n]`` and ``[D, n]``, for
        ramps ``[2, p, h]``, ``[2, p, D]``, ``[n]`` and ``[#b, q]``, for cells ``[h, b, r, k]`` and ``[D, b, r, k]``."""
        of, sizes, rows, keys = self.of, self.of.sizes, block.part, block.keys
        grad, delta = self.grad[:, :, rows], self.delta[:, :, rows]
        batch, _, queries = delta.shape
        shared = of.inputs(terms, rows, keys) | {
            "grad": grad,
            "largest": self.largest[:, :, rows],
            "inverses": self.inverses[:, :, rows],
            "delta": delta,
            **_strides("grad", grad),
            "row_b": delta.stride(0),
            "row_h": delta.stride(1),
        }
        tile = {"M": ROWS, "N": ROWS}
        row_tiles, key_tiles = math.ceil(queries / ROWS), math.ceil(keys / ROWS)
        d_q = self.d_q[:, :, rows]
        grid = (row_tiles, batch, sizes.shares(sizes.width))
        rest = torch.empty_like(self.delta)[:, :, rows]
        d_of_rows = self.d_q.new_empty(batch, queries)
        written = {"d_q": d_q, **_strides("dq", d_q), "rest": rest, "d_of_rows": d_of_rows}
        of._launch(kernels.backward_queries, grid, shared | written, terms, tile)
        delta.add_(rest)  # now the gradients of a row's logits sum to 0
        d_k, d_v = torch.empty_like(self._d_k[:, :, :keys]), torch.empty_like(self._d_v[:, :, :keys])
        written = {"d_k": d_k, "d_v": d_v, **_strides("dk", d_k), **_strides("dv", d_v)}
        for what in together_or_apart(sizes, "FOR_K", "FOR_V"):
            grid = (key_tiles, batch, sizes.shares(sizes.width if what["FOR_K"] else sizes.values))
            of._launch(kernels.backward_keys, grid, shared | written, terms, tile | what)
        self._d_k[:, :, :keys].add_(d_k)
        self._d_v[:, :, :keys].add_(d_v)
        d_static, d_pre, *d_table = self._terms(terms, shared, tile, row_tiles, key_tiles)
        if terms.ramp is not None:
            return d_static, d_pre, *d_table, d_of_rows.sum_to_size(terms.ramp.of_rows.shape)
        if terms.tables:
            return d_static, d_pre
        return d_static.transpose(0, 1), None if d_pre is None else d_pre.transpose(0, 1)

    def _terms(self, terms: Terms, shared, tile, row_tiles: int, key_tiles: int) -> tuple[Any, ...]:
        of, sizes, batch = self.of, self.of.sizes, self.delta.shape[0]
        first, programs = 0, row_tiles
        if terms.tables:
            last = key_tiles - 1
            if of.causal_offset is not None:  # later bands are hidden
                last = max(1 - row_tiles, min(last, (shared["offset"] + ROWS - 1) // ROWS))
            first, programs = 1 - row_tiles, last + row_tiles
        d_static, d_pre, d_table = self._space(terms, (batch, programs), shared["queries"], shared["keys"])
        d_wa = self.d_q.new_empty(batch, programs, sizes.dp, sizes.hp)
        d_w2 = self.d_q.new_empty(batch, programs, sizes.hp, sizes.dp)
        written = {"d_static": d_static, "d_pre": d_pre, "d_table": d_table, "d_wa": d_wa, "d_w2": d_w2}
        which = together_or_apart(sizes, "FOR_WEIGHTS", "FOR_TERMS", apart=not terms.tables or terms.ramp is not None)
        for what in which if of.mixes else [{"FOR_WEIGHTS": False, "FOR_TERMS": True}]:
            given = shared | written | {"first_band": first}
            of._launch(kernels.backward_terms, (programs, batch), given, terms, tile | what)
        if of.mixes:
            self.d_wa.add_(d_wa.sum((0, 1))[: sizes.hidden, : sizes.heads])
            self.d_w2.add_(d_w2.sum((0, 1))[: sizes.heads, : sizes.hidden])
        place = {"first": terms.start + first * ROWS, "count": shared["queries"] + shared["keys"] - 1}
        if terms.ramp is not None:
            d_static = _of_pieces(d_static, terms.ramp, sizes.heads)
            d_pre = _of_pieces(d_pre, terms.ramp, sizes.hidden) if of.mixes else None
            return d_static, d_pre, _diagonals(d_table.sum(0).unsqueeze(0), **place).squeeze(0)
        if terms.tables:
            d_static = _diagonals(d_static.sum(0).transpose(0, 1)[: sizes.heads], **place)
            d_pre = _diagonals(d_pre.sum(0).permute(3, 0, 1, 2)[: sizes.hidden], **place) if of.mixes else d_pre
        return d_static, self._with_position(terms, d_static, d_pre) if of.mixes else None

    def _space(self, terms: Terms, programs: tuple[int, int], queries: int, keys: int) -> tuple[Tensor, ...]:
        """Tensors for the gradients of static, pre and a ramp's table; empty ones for absent inputs."""
        sizes, empty, mixes = self.of.sizes, self.d_q.new_empty, self.of.mixes
        nothing = empty(0)
        if terms.ramp is not None:
            pieces = padded(len(terms.ramp.kinks) + 1)
            d_pre = empty(*programs, pieces, 2, sizes.dp) if mixes else nothing
            return empty(*programs, pieces, 2, sizes.hp), d_pre, empty(*programs, ROWS, ROWS)
        if terms.tables:
            d_pre = empty(*programs, ROWS, ROWS, sizes.dp) if mixes else nothing
            return empty(*programs, sizes.hp, ROWS, ROWS), d_pre, nothing
        cells = (queries, keys)
        d_pre = self.d_q.new_zeros(programs[0], sizes.hidden, *cells) if mixes else nothing
        return self.d_q.new_zeros(programs[0], sizes.heads, *cells), d_pre, nothing

    def _with_position(self, terms: Terms, d_static: Tensor, d_pre: Tensor) -> Tensor:
        """Add the gradients of ``pre`` and w2 through ``of_position`` in the static term. Returns the gradient of
        ``pre``, which is summed over items that share ``pre``."""
        w2, pre = self.of.exact_w2, terms.pre
        assert w2 is not None and pre is not None
        if terms.tables:
            pre = pre.t()[: self.of.sizes.hidden]
        elif len(pre) == 1:
            d_static, d_pre = d_static.sum(0, keepdim=True), d_pre.sum(0, keepdim=True)
        by_channel = (lambda x: x) if terms.tables else (lambda x: x.transpose(0, 1))
        flat = by_channel(d_static).flatten(1)
        self.d_w2.addmm_(flat, torch.nn.functional.leaky_relu(by_channel(pre), LEAKY_SLOPE).flatten(1).t())
        d_hidden = by_channel((w2.t() @ flat).unflatten(1, by_channel(pre).shape[1:]))
        return d_pre.add_(torch.where(pre > 0, d_hidden, d_hidden * LEAKY_SLOPE))


def flags(
    *, mix: bool, tables: bool, causal: bool, static: bool, padding: bool, dtype: str, interpreted: bool, kinks: int = 0
) -> dict[str, Any]:
    """The constants of the kernels besides sizes. ``dtype`` is Triton's name: fp32, fp16 or bf16; ``kinks`` is the
    number of kinks of a ramp."""
    store = {"fp32": kernels.tl.float32, "fp16": kernels.tl.float16, "bf16": kernels.tl.bfloat16}[dtype]
    return {
        "MIX": mix,
        "TABLES": tables,
        "CAUSAL": causal,
        "STATIC": static,
        **of_kinks(kinks),
        "PADDING": padding,
        "SLOPE": LEAKY_SLOPE,
        "SHRINK": 2.0**-8 if dtype == "fp16" else 1.0,
        "STORE": store,
        "TYPE": kernels.tl.float32 if interpreted else store,
    }


def of_kinks(kinks: int) -> dict[str, int]:
    return {"KINKS": kinks, "PIECES": padded(kinks + 1) if kinks else 0}


def together_or_apart(sizes: Sizes, a: str, b: str, *, apart: bool = False) -> list[dict[str, bool]]:
    """The launches for two gradients: a single one, which computes the weights once, or two if both do not fit."""
    if apart or sizes.one_at_a_time:
        return [{a: True, b: False}, {a: False, b: True}]
    return [{a: True, b: True}]


def _in_two_parts(weight: Float[Tensor, "a b"], padding: tuple[int, ...], dtype: torch.dtype) -> Float[Tensor, "2 c d"]:
    """The padded weight as a rounded tensor and its rounding error."""
    upper = weight.to(dtype)
    lower = (weight.float() - upper.float()).to(dtype)
    return torch.nn.functional.pad(torch.stack([upper, lower]), padding)


def _unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _strides(name: str, x: Float[Tensor, "b h t d"]) -> dict[str, int]:
    return {f"{name}_b": x.stride(0), f"{name}_h": x.stride(1), f"{name}_t": x.stride(2)}


def _join(outs: Float[Tensor, "s *q e"], sums: Float[Tensor, "s *q 2"], out: Tensor, softmax: Tensor) -> None:
    """Combine the results of the parts of the keys."""
    largest, total = sums.unbind(-1)
    top = largest.amax(0)
    total = total * torch.exp2(largest - top.masked_fill(top == -math.inf, 0.0))
    whole = total.sum(0)
    out.copy_(((total / whole.masked_fill(whole == 0, 1.0)).unsqueeze(-1) * outs).sum(0))
    softmax.copy_(torch.stack([top, whole], -1))


def _of_pieces(x: Float[Tensor, "b n m 2 p"], ramp: Ramp, channels: int) -> Float[Tensor, "2 w c"]:
    """The gradients of slopes and levels without padding, summed over programs."""
    return x.sum((0, 1))[: len(ramp.kinks) + 1, :, :channels].transpose(0, 1)


def _diagonals(x: Float[Tensor, "c bands r r"], *, first: int, count: int) -> Float[Tensor, "c n"]:
    """The sums for entries 0 ... count-1 of the tables. Row r and column j of a tile belong to entry
    ``first + band * ROWS - r + j``, so that the sums of neighbouring bands overlap."""
    channels, bands = x.shape[:2]
    # Reading rows of length 2 ROWS as rows of length 2 ROWS - 1 shifts each row by one more.
    shifted = torch.nn.functional.pad(x.flip(2), (0, ROWS))[:, :, :, : 2 * ROWS].flatten(2)
    sums = shifted[..., : ROWS * (2 * ROWS - 1)].unflatten(2, (ROWS, 2 * ROWS - 1)).sum(2)
    total = x.new_zeros(channels, bands + 1, ROWS)
    total[:, :-1] += sums[..., :ROWS]
    total[:, 1:, : ROWS - 1] += sums[..., ROWS:]
    begin = first - (ROWS - 1)  # of the first band's sums
    found = x.new_zeros(channels, count)
    low, high = max(0, begin), min(count, begin + (bands + 1) * ROWS)
    found[:, low:high] = total.flatten(1)[:, low - begin : high - begin]
    return found
