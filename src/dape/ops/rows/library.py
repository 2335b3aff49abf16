"""The compiled functions, and when they can be used."""

from ctypes import c_float, c_int, c_long, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from dape.ops.compiled import Compiled

_ROWS = [c_long] * 3
_DROPOUT = [c_void_p, c_int, c_float]
_compiled = Compiled(
    Path(__file__).with_name("kernel.cpp"),
    "norms",
    {
        "dape_add_norm": [*_ROWS, *[c_void_p] * 2, *_DROPOUT, *[c_void_p] * 2, c_float, *[c_void_p] * 4],
        "dape_add_norm_backward": [*_ROWS, *[c_void_p] * 4, *_DROPOUT, *[c_void_p] * 5],
        "dape_bias_relu": [*_ROWS, *[c_void_p] * 2],
        "dape_bias_relu_backward": [*_ROWS, *[c_void_p] * 3],
    },
)
usable = _compiled.usable


def run(name: str, x: Tensor, *arguments: Tensor | float | None) -> None:
    """On the rows of ``x``, which comes first; all tensors contiguous."""
    _compiled(name, (*x.shape, torch.get_num_threads()), x, *arguments)
