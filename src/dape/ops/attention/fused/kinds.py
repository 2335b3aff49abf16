"""The kernels for :data:`~dape.positional.row_forms.RowForm`, and the ctypes versions of their structures.

Each kind is a library, which is built when it is first needed.
"""

import ctypes
import functools
from ctypes import Structure, c_long, c_void_p
from pathlib import Path

from dape.ops import prebuilt
from dape.ops.attention.fused.library import SOURCE, View


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


class ConvolvedCall(Structure):
    _fields_ = [
        *((name, c_long) for name in ("batch", "heads", "kv_heads", "queries", "keys", "width", "value_width")),
        *((name, c_long) for name in ("hidden", "taps", "threads", "causal", "offset")),
        *((name, c_void_p) for name in ("wa", "w2")),
        *((name, View) for name in ("fixed", "pre")),
        ("edges", c_void_p),
        *((name, View) for name in ("q", "k_panels", "v_rows", "k", "v", "out", "softmax")),
        *((name, c_long) for name in ("few_rows", "splits")),
        ("parts", c_void_p),
    ]


class ConvolvedBackward(Structure):
    _fields_ = [
        *((name, View) for name in ("k_rows", "v_panels")),
        *((name, c_void_p) for name in ("wa_back", "w2_back")),
        *((name, View) for name in ("d_out", "delta", "d_q")),
        ("parts", c_long),
        *((name, c_void_p) for name in ("d_k", "d_v", "d_fixed", "d_pre", "d_edges")),
        *((name, c_long) for name in ("fixed_span", "pre_span", "edges_span")),
        *((name, c_void_p) for name in ("d_wa", "d_w2")),
    ]


STRUCTURES = {
    "relative": (RelativeCall, RelativeBackward),
    "counted": (CountedCall, CountedBackward),
    "convolved": (ConvolvedCall, ConvolvedBackward),
}


def source(kind: str) -> Path:
    return SOURCE.with_name(f"{kind}.cpp")


@functools.cache
def load(kind: str) -> ctypes.CDLL:
    """The library of a kind, built if necessary. Raises ``OSError`` if there is none."""
    return prebuilt.load(source(kind), functools.partial(opened, kind))


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
