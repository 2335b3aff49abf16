"""Calls of the kernels that take one head at a time (``relative.cpp``, ``counted.cpp``), and their structures, mirrored
for ctypes."""

import ctypes
import functools
import math
from ctypes import Structure, c_long, c_void_p
from pathlib import Path

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from dape.ops.attention.engines.base import Call, Found
from dape.ops.attention.engines.row_terms import CountTerms, RowFormTerms
from dape.ops.attention.fused import library
from dape.ops.attention.fused.library import BLOCKED_ROWS, PANELS, ROWS, View, consecutive, pack, pointer, view
from dape.ops.attention.fused.run import LOG2_E, MAX_PARTS, Attention, outputs
from dape.ops.native import build


class HeadCall(Structure):
    _fields_ = [
        *((name, c_long) for name in ("batch", "heads", "kv_heads", "queries", "keys", "width", "value_width")),
        *((name, c_long) for name in ("threads", "causal", "offset")),
        ("mask", c_void_p),
        *((name, View) for name in ("q", "k_panels", "v_rows", "k", "v", "out", "softmax")),
        ("few_rows", c_long),
    ]


class HeadBackward(Structure):
    _fields_ = [
        *((name, View) for name in ("k_rows", "v_panels", "d_out", "delta", "d_q")),
        ("parts", c_long),
        *((name, c_void_p) for name in ("d_k", "d_v")),
    ]


class RelativeCall(Structure):
    _fields_ = [
        ("head", HeadCall),
        ("p", View),
        ("columns", c_void_p),
        *((name, c_long) for name in ("columns_head", "columns_row")),
        ("entries", c_void_p),
        ("entries_head", c_long),
    ]


class RelativeBackward(Structure):
    _fields_ = [("head", HeadBackward), ("d_p", View), ("d_entries", c_void_p), ("entries_span", c_long)]


class CountedCall(Structure):
    _fields_ = [("head", HeadCall), ("z", View), ("places", c_long)]


class CountedBackward(Structure):
    _fields_ = [("head", HeadBackward), ("d_z", View)]


STRUCTURES = {"relative": (RelativeCall, RelativeBackward), "counted": (CountedCall, CountedBackward)}


def source(kind: str) -> Path:
    return library.SOURCE.with_name(f"{kind}.cpp")


@functools.cache
def load(kind: str) -> ctypes.CDLL:
    """The library of a kind, built if need be. Raises ``OSError`` where it cannot be built or loaded."""
    return opened(kind, build(source(kind)))


def opened(kind: str, path: Path) -> ctypes.CDLL:
    """A library built from a kind's source, with the types of its functions."""
    found = ctypes.CDLL(str(path))
    for what in ("sizes", "forward", "backward"):
        getattr(found, f"dape_{kind}_{what}").restype = c_long
    call, backward = map(ctypes.sizeof, STRUCTURES[kind])
    if (sizes := getattr(found, f"dape_{kind}_sizes")()) != call * 10000 + backward:
        raise OSError(f"the structures of {kind}.cpp take {sizes}, here {call * 10000 + backward}: another C++ ABI?")
    return found


def run(kind: str, what: str, *structures: Structure) -> None:
    name = f"dape_{kind}_{what}"
    if getattr(load(kind), name)(*map(ctypes.byref, structures)):
        raise MemoryError(f"not enough memory for the scratch space of {name}; fewer threads need less")


# One head at a time --------------------------------------------------------------------------------------------------


class Heads:
    """A call of one of these kernels, without what is its kind's own."""

    def __init__(self, call: Call) -> None:
        self.of = Attention(
            call.q, call.k, call.v, None, causal_offset=call.causal_offset, key_padding_mask=call.key_padding_mask
        )

    def call(self, out: Tensor, softmax: Tensor, *, backward: bool = False) -> HeadCall:
        of, offset = self.of, self.of.causal_offset
        batch, heads, queries, width = of.q_shape
        lean = of.few_rows
        return HeadCall(
            *(batch, heads, of.k_shape[1], queries, of.k_shape[2], width, of.value_width, of.threads),
            causal=offset is not None,
            offset=offset or 0,
            mask=pointer(of.mask),
            q=view(of.q_rows),
            k_panels=view(None if lean else of.k_panels),
            v_rows=view(None if lean or backward else of.v_rows),
            k=view(of.k),
            v=view(of.v),
            out=view(out),
            softmax=view(softmax),
            few_rows=lean,
        )


class HeadGradients:
    """What the backward pass of one of these kernels fills, of q, k and v."""

    def __init__(self, of: Attention, grad: Tensor, out: Tensor, softmax: Tensor) -> None:
        self._of = of
        batch, heads, queries, width = of.q_shape
        units = max(1, batch * of.k_shape[1])
        self.parts = min(MAX_PARTS, math.ceil(of.threads / units))
        grad = consecutive(grad) / softmax[..., 1:]
        self._d_out, self._delta = pack(grad, ROWS), (grad * out).sum(-1, keepdim=True)
        self._k_rows, self._v_panels = pack(of.k, BLOCKED_ROWS), pack(of.v, PANELS)
        keys = self._k_rows.shape[2]
        self.d_q = library.empty(batch, queries, heads, width).transpose(1, 2)
        self._d_k, self._d_v = (
            library.zeros(self.parts, batch, of.k_shape[1], keys, library.padded(wide)) for wide in (width, of.value_width)
        )

    def backward(self) -> HeadBackward:
        return HeadBackward(
            *(view(x) for x in (self._k_rows, self._v_panels, self._d_out, self._delta, self.d_q)),
            parts=self.parts,
            d_k=self._d_k.data_ptr(),
            d_v=self._d_v.data_ptr(),
        )

    def found(self, *of_terms: Tensor) -> Found:
        keys, width = self._of.k_shape[2:]
        d_k = self._d_k.sum(0)[:, :, :keys, :width] / LOG2_E  # scores were in base 2
        d_v = self._d_v.sum(0)[:, :, :keys, : self._of.value_width]
        return Found(self.d_q, d_k, d_v, None, None, of_terms)


# Relative products ---------------------------------------------------------------------------------------------------


def entries_of(table: Float[Tensor, "h n d"]) -> Float[Tensor, "h m e"]:
    """As the kernel reads them: rows of whole vectors, and some beyond the last lag."""
    width = table.shape[-1]
    return pad(table.float(), (0, library.padded(width) - width, 0, library.lanes())).contiguous()


class Relative:
    """``first``: the entry of the last query and key 0."""

    def __init__(self, call: Call, second: Tensor, entries: Float[Tensor, "h m e"], first: int = 0) -> None:
        self.heads, self.entries = Heads(call), entries
        self.p = pack(second, ROWS, self.heads.of.factor)
        self.start = first + call.queries - 1  # of row 0
        self.columns = None if self.heads.of.few_rows else self._columns(call.q.shape[-1])

    def _columns(self, width: int) -> Float[Tensor, "h d m"]:
        """Transposed. Rows an odd number of vectors apart do not compete for the same lines of the cache."""
        lanes, lags = library.lanes(), self.entries.shape[1]
        room = (math.ceil(lags / lanes) | 1) * lanes + 2 * lanes
        found = library.zeros(len(self.entries), width, room)
        found[..., :lags] = self.entries.transpose(1, 2)[:, :width]
        return found

    def call(self, out: Tensor, softmax: Tensor, *, backward: bool = False) -> RelativeCall:
        columns, entries = self.columns, self.entries
        return RelativeCall(
            head=self.heads.call(out, softmax, backward=backward),
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
        batch, heads, queries, width = self.heads.of.q_shape
        sums = HeadGradients(self.heads.of, grad, out, softmax)
        d_p = library.empty(batch, queries, heads, width).transpose(1, 2)
        d_entries = library.zeros(sums.parts * batch, *self.entries.shape)
        backward = RelativeBackward(
            head=sums.backward(),
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
        self.heads, self.z = Heads(call), consecutive(z * LOG2_E)

    def call(self, out: Tensor, softmax: Tensor, *, backward: bool = False) -> CountedCall:
        return CountedCall(self.heads.call(out, softmax, backward=backward), view(self.z), self.z.shape[-1])

    def forward(self, out: Tensor, softmax: Tensor) -> None:
        run("counted", "forward", self.call(out, softmax))

    def backward(self, grad: Tensor, out: Tensor, softmax: Tensor) -> Found:
        sums = HeadGradients(self.heads.of, grad, out, softmax)
        d_z = library.zeros(*self.z.shape)
        backward = CountedBackward(sums.backward(), view(d_z))
        run("counted", "backward", self.call(out, softmax, backward=True), backward)
        return sums.found(d_z)


def laid_out(call: Call, terms: RowFormTerms) -> Relative | Counted:
    """For the kernel of its kind."""
    if isinstance(terms, CountTerms):
        return Counted(call, terms.z)
    return Relative(call, terms.second, entries_of(terms.table))


def forward(call: Call, kernel: Relative | Counted) -> tuple[Tensor, Tensor]:
    out, softmax = outputs(call.q, call.v)
    kernel.forward(out, softmax)
    return out, softmax
