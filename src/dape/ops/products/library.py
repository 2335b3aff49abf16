"""The compiled functions, and when they can be used."""

import functools
from ctypes import c_int, c_long, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from dape.ops.compiled import Compiled
from dape.ops.native import processor

_SHAPE = [c_long] * 3
_compiled = Compiled(
    Path(__file__).with_name("kernel.cpp"),
    "matrix products",
    {
        "dape_panel": [],
        "dape_multiply": [*_SHAPE, *[c_void_p] * 2, c_int, c_void_p],
        "dape_across": [*_SHAPE, *[c_void_p] * 3],
        "dape_feed_forward": [*_SHAPE, *[c_void_p] * 7],
        "dape_feed_forward_backward": [*_SHAPE, *[c_void_p] * 10],
    },
)
run = _compiled
FEW_ROWS = 512
"""With fewer, packing the other operand takes longer than is won."""


def usable(*tensors: Tensor, rows: int, widths: tuple[int, ...]) -> bool:
    """On one thread, as parts of a batch are computed: PyTorch's BLAS is as fast where threads share a product.
    ``rows`` share the other operand; ``widths`` are those of matrices that columns are taken from."""
    if not _compiled.usable(*tensors) or torch.get_num_threads() > 1 or not measured(processor()):
        return False
    return rows >= FEW_ROWS and all(width > 0 and width % _panel() == 0 for width in widths)


def measured(processor: str) -> bool:
    """Faster there than PyTorch's. Intel's library knows Intel's processors better, and vectors of 512 bits were never
    measured."""
    return "AMD" in processor and "avx2" in processor and "avx512f" not in processor


@functools.cache
def _panel() -> int:
    return _compiled.library.dape_panel()
