"""The compiled kernel in Python: the ctypes versions of the structures of ``kernel.cpp``."""

import ctypes
import functools
import math
from ctypes import Structure, c_float, c_long, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from dape.ops import prebuilt
from dape.positional.base import LEAKY_SLOPE

SOURCE = Path(__file__).with_name("kernel.cpp")

LINE = 16
"""How many numbers a line of the cache holds."""
ROWS, BLOCKED_ROWS, PANELS, KEY_STRIPS, WIDTH_STRIPS = range(5)


class View(Structure):
    _fields_ = [("at", c_void_p), ("item", c_long), ("head", c_long), ("row", c_long)]


class Ramp(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("table", "rows")),
        ("item", c_long),
        ("kinks", c_void_p),
        ("pieces", c_long),
        *((name, c_void_p) for name in ("slopes", "levels")),
    ]


class Separable(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("rows", "rows_low")),
        *((name, c_long) for name in ("row_item", "row_channel")),
        *((name, c_void_p) for name in ("keys", "keys_low")),
        *((name, c_long) for name in ("key_item", "key_channel")),
    ]


class Call(Structure):
    _fields_ = [
        *((name, c_long) for name in ("batch", "heads", "kv_heads", "queries", "keys", "width", "value_width")),
        *((name, c_long) for name in ("hidden", "threads", "causal", "offset")),
        *((name, c_void_p) for name in ("wa", "w2")),
        *((name, View) for name in ("fixed", "pre")),
        ("ramp", Ramp),
        ("separable", Separable),
        ("mask", c_void_p),
        ("q", View),
        *((name, View) for name in ("k_panels", "v_rows", "k", "v", "out", "softmax")),
        ("apart", c_long),
        ("few_rows", c_long),
        ("factor", c_float),
        ("splits", c_long),
        ("parts", c_void_p),
    ]


class Backward(Structure):
    _fields_ = [
        *((name, View) for name in ("k_rows", "v_panels")),
        *((name, c_void_p) for name in ("wa_plain", "w2_plain")),
        ("d_out", View),
        ("delta", View),
        ("parts", c_long),
        ("d_q", View),
        *((name, c_void_p) for name in ("d_k", "d_v")),
        *((name, View) for name in ("to_k", "to_v")),
        ("added", c_long),
        *((name, c_void_p) for name in ("d_fixed", "d_pre")),
        *((name, c_long) for name in ("fixed_span", "pre_span")),
        *((name, c_void_p) for name in ("d_wa", "d_w2", "d_table")),
        ("table_span", c_long),
        *((name, c_void_p) for name in ("d_rows", "d_slopes", "d_levels")),
        ("d_of_rows", View),
        ("d_of_keys", c_void_p),
    ]


@functools.cache
def load() -> ctypes.CDLL:
    """The library, built if necessary. Raises ``OSError`` if there is none."""
    return prebuilt.load(SOURCE, opened)


def opened(path: Path) -> ctypes.CDLL:
    """A library built from ``kernel.cpp``, with the types of its functions."""
    library = ctypes.CDLL(str(path))
    for name in ("dape_lanes", "dape_block", "dape_strip", "dape_sizes"):
        getattr(library, name).restype = c_long
    expected = ctypes.sizeof(Call) * 10000 + ctypes.sizeof(Backward)
    if library.dape_sizes() != expected:
        raise OSError(f"the kernel's structures take {library.dape_sizes()}, here {expected}: another C++ ABI?")
    library.dape_slope.restype = c_float
    assert math.isclose(library.dape_slope(), LEAKY_SLOPE, rel_tol=1e-6)
    library.dape_pack.argtypes = [c_long] * 4 + [View, c_float, c_void_p, c_long, c_long]
    library.dape_pack.restype = None
    for name in ("dape_forward", "dape_decode", "dape_backward", "dape_ramp_cells", "dape_ramp_backward"):
        getattr(library, name).restype = c_long
    return library


def run(name: str, *structures: Structure) -> None:
    """Call one of the functions that allocate scratch space."""
    if getattr(load(), name)(*map(ctypes.byref, structures)):
        raise MemoryError(f"not enough memory for the scratch space of {name}; fewer threads need less")


@functools.cache
def lanes() -> int:
    return int(load().dape_lanes())


@functools.cache
def block() -> int:
    return int(load().dape_block())


@functools.cache
def strip() -> int:
    return int(load().dape_strip())


def padded(width: int) -> int:
    """The width rounded up to whole vectors."""
    return math.ceil(width / lanes()) * lanes()


def whole_blocks(rows: int) -> int:
    return math.ceil(rows / block()) * block()


def view(x: Tensor | None) -> View:
    """A view of [item, head, row, width], whose last dimension is consecutive."""
    if x is None:
        return View(None, 0, 0, 0)
    assert x.stride(-1) == 1 or x.shape[-1] == 1 or x.numel() == 0
    return View(x.data_ptr(), *x.stride()[:3])


def empty(*shape: int) -> Tensor:
    """A tensor for the kernel to write to, independent of torch's default type and device."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float32, device="cpu")


def pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def pack(x: Tensor, layout: int, factor: float = 1.0) -> Tensor:
    """Copy [b, h, rows, width] to [b, h, rows, padded width], or to another ``Layout`` of ``kernel.cpp``."""
    x = consecutive(x)
    *front, rows, width = x.shape
    filled, wide = whole_blocks(rows), padded(width)
    shapes = {ROWS: (rows, wide), BLOCKED_ROWS: (filled, wide), PANELS: (filled, width), KEY_STRIPS: (filled, width)}
    shapes[WIDTH_STRIPS] = (filled, math.ceil(width / strip()) * strip())
    packed = empty(*front, *shapes[layout])
    load().dape_pack(*front, rows, width, view(x), factor, packed.data_ptr(), layout, torch.get_num_threads())
    return packed


def consecutive(x: Tensor) -> Tensor:
    """The tensor in float32, with the numbers of a row beside each other."""
    return x.float() if x.stride(-1) == 1 else x.float().contiguous()
