"""Calls of ``relative.cpp`` and ``counted.cpp``, the kernels that compute one head at a time."""

import functools
import math
from typing import Any

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from dape.ops.attention.engines.base import Call, Found
from dape.ops.attention.fused import library
from dape.ops.attention.fused.kinds import (
    CountedBackward,
    CountedCall,
    HeadBackward,
    HeadCall,
    RelativeBackward,
    RelativeCall,
    run,
)
from dape.ops.attention.fused.library import BLOCKED_ROWS, PANELS, ROWS, consecutive, pack, pointer, view
from dape.ops.attention.fused.run import LOG2_E, MAX_PARTS, Attention


class Inputs(Attention):
    """q, k and v as these kernels read them."""

    @functools.cached_property
    def k_panels(self) -> Tensor:
        return pack(self.k, PANELS)

    @functools.cached_property
    def v_rows(self) -> Tensor:
        return pack(self.v, BLOCKED_ROWS)


def laid_out(call: Call) -> Inputs:
    padding = call.key_padding_mask
    return Inputs(call.q, call.k, call.v, None, causal_offset=call.causal_offset, key_padding_mask=padding)


def fields(of: Inputs, out: Tensor, softmax: Tensor, *, backward: bool) -> dict[str, Any]:
    """Fields that the call structures of both kernels have."""
    offset, lean = of.causal_offset, of.few_rows
    batch, heads, queries, width = of.q_shape
    return {
        **{"batch": batch, "heads": heads, "kv_heads": of.k_shape[1], "queries": queries, "keys": of.k_shape[2]},
        **{"width": width, "value_width": of.value_width, "threads": of.threads},
        **{"causal": offset is not None, "offset": offset or 0, "few_rows": lean},
        "k_panels": view(None if lean else of.k_panels),
        "v_rows": view(None if lean or backward else of.v_rows),
        **{
            name: view(x)
            for name, x in (("q", of.q_rows), ("k", of.k), ("v", of.v), ("out", out), ("softmax", softmax))
        },
    }


def _head_call(of: Inputs, out: Tensor, softmax: Tensor, *, backward: bool) -> HeadCall:
    return HeadCall(mask=pointer(of.mask), **fields(of, out, softmax, backward=backward))


class Gradients:
    """The gradients of q, k and v that a backward pass computes.

    ``shares`` is the number of parts of an item that can be computed in parallel. If there are more threads, the rows
    are divided too.
    """

    def __init__(self, of: Inputs, grad: Tensor, out: Tensor, softmax: Tensor, *, shares: int) -> None:
        self._of = of
        batch, heads, queries, width = of.q_shape
        self.parts = min(MAX_PARTS, math.ceil(of.threads / max(1, batch * shares)))
        grad = consecutive(grad) / softmax[..., 1:]
        self._d_out, self._delta = pack(grad, ROWS), (grad * out).sum(-1, keepdim=True)
        self._k_rows, self._v_panels = pack(of.k, BLOCKED_ROWS), pack(of.v, PANELS)
        keys = self._k_rows.shape[2]
        self.d_q = library.empty(batch, queries, heads, width).transpose(1, 2)
        self._d_k, self._d_v = (
            library.zeros(self.parts, batch, of.k_shape[1], keys, library.padded(wide))
            for wide in (width, of.value_width)
        )

    def fields(self) -> dict[str, Any]:
        """Fields of the kernel's structure."""
        names = ("k_rows", "v_panels", "d_out", "delta", "d_q")
        views = (self._k_rows, self._v_panels, self._d_out, self._delta, self.d_q)
        found = {name: view(x) for name, x in zip(names, views, strict=True)}
        return {**found, "parts": self.parts, "d_k": self._d_k.data_ptr(), "d_v": self._d_v.data_ptr()}

    def found(self, *of_terms: Tensor) -> Found:
        keys, width = self._of.k_shape[2:]
        d_k = self._d_k.sum(0)[:, :, :keys, :width] / LOG2_E  # scores were in base 2
        d_v = self._d_v.sum(0)[:, :, :keys, : self._of.value_width]
        return Found(self.d_q, d_k, d_v, None, None, of_terms)


# Relative products ---------------------------------------------------------------------------------------------------


def entries_of(table: Float[Tensor, "h n d"]) -> Float[Tensor, "h m e"]:
    """The table as the kernel reads it: rows padded to whole vectors, and some rows beyond the last lag."""
    width = table.shape[-1]
    return pad(table.float(), (0, library.padded(width) - width, 0, library.lanes())).contiguous()


class Relative:
    def __init__(self, call: Call, second: Tensor, entries: Float[Tensor, "h m e"], first: int = 0) -> None:
        """``first`` is the entry of the last query and key 0."""
        self.of, self.entries = laid_out(call), entries
        self.p = pack(second, ROWS, self.of.factor)
        self.start = first + call.queries - 1  # of row 0
        self.columns = None if self.of.few_rows else self._columns(call.q.shape[-1])

    def _columns(self, width: int) -> Float[Tensor, "h d m"]:
        """The table transposed; rows an odd number of vectors apart do not compete for lines of the cache."""
        lanes, lags = library.lanes(), self.entries.shape[1]
        room = (math.ceil(lags / lanes) | 1) * lanes + 2 * lanes
        found = library.zeros(len(self.entries), width, room)
        found[..., :lags] = self.entries.transpose(1, 2)[:, :width]
        return found

    def call(self, out: Tensor, softmax: Tensor, *, backward: bool = False) -> RelativeCall:
        columns, entries = self.columns, self.entries
        return RelativeCall(
            head=_head_call(self.of, out, softmax, backward=backward),
            p=view(self.p),
            columns=None if columns is None else columns.data_ptr() + 4 * self.start,
            columns_head=0 if columns is None else columns.stride(0),
            columns_row=0 if columns is None else columns.stride(1),
            entries=entries.data_ptr() + 4 * self.start * entries.stride(1),
            entries_head=entries.stride(0),
        )

    def forward(self, out: Tensor, softmax: Tensor) -> None:
        run("relative", "forward", self.call(out, softmax))

    def backward(self, grad: Tensor, out: Tensor, softmax: Tensor) -> Found:
        batch, heads, queries, width = self.of.q_shape
        sums = Gradients(self.of, grad, out, softmax, shares=self.of.k_shape[1])
        d_p = library.empty(batch, queries, heads, width).transpose(1, 2)
        d_entries = library.zeros(sums.parts * batch, *self.entries.shape)
        backward = RelativeBackward(
            head=HeadBackward(**sums.fields()),
            d_p=view(d_p),
            d_entries=d_entries.data_ptr() + 4 * self.start * d_entries.stride(2),
            entries_span=d_entries.stride(1),
        )
        run("relative", "backward", self.call(out, softmax, backward=True), backward)
        d_table = d_entries.sum(0)[:, : -library.lanes(), :width] / LOG2_E
        return sums.found(d_p, d_table)


# Counts --------------------------------------------------------------------------------------------------------------


class Counted:
    def __init__(self, call: Call, z: Float[Tensor, "b h q p"]) -> None:
        self.of, self.z = laid_out(call), consecutive(z * LOG2_E)

    def call(self, out: Tensor, softmax: Tensor, *, backward: bool = False) -> CountedCall:
        return CountedCall(_head_call(self.of, out, softmax, backward=backward), view(self.z), self.z.shape[-1])

    def forward(self, out: Tensor, softmax: Tensor) -> None:
        run("counted", "forward", self.call(out, softmax))

    def backward(self, grad: Tensor, out: Tensor, softmax: Tensor) -> Found:
        sums = Gradients(self.of, grad, out, softmax, shares=self.of.k_shape[1])
        d_z = library.zeros(*self.z.shape)
        backward = CountedBackward(HeadBackward(**sums.fields()), view(d_z))
        run("counted", "backward", self.call(out, softmax, backward=True), backward)
        return sums.found(d_z)
