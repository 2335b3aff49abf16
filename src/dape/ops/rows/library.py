"""The compiled functions, and when they can be used."""

import ctypes
import functools
import warnings
from ctypes import c_float, c_int, c_long, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from dape.ops.attention.fused.available import why_not_compiled
from dape.ops.native import build

SOURCE = Path(__file__).with_name("kernel.cpp")
_DROPOUT = [c_void_p, c_int, c_float]
_ARGUMENTS = {
    "dape_add_norm": [*[c_void_p] * 2, *_DROPOUT, *[c_void_p] * 2, c_float, *[c_void_p] * 4],
    "dape_add_norm_backward": [*[c_void_p] * 4, *_DROPOUT, *[c_void_p] * 5],
    "dape_bias_relu": [c_void_p] * 2,
    "dape_bias_relu_backward": [c_void_p] * 3,
}


def usable(*tensors: Tensor) -> bool:
    """In float32 on a CPU with a compiler; PyTorch's own operations compute the same elsewhere."""
    plain = all(x.dtype == torch.float32 and x.device.type == "cpu" for x in tensors)
    return plain and not torch.compiler.is_compiling() and why_not_compiled(tensors[0]) is None and _loads()


@functools.cache
def _loads() -> bool:
    try:
        load()
    except OSError as error:
        warnings.warn(
            f"dape's compiled norms are not available, they will be slower: {error}", RuntimeWarning, stacklevel=2
        )
        return False
    return True


@functools.cache
def load() -> ctypes.CDLL:
    library = ctypes.CDLL(str(build(SOURCE)))
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = [c_long] * 3 + arguments, None
    return library


def run(name: str, x: Tensor, *arguments: Tensor | float | None) -> None:
    """On the rows of ``x``, which comes first; all tensors contiguous."""
    rows, width = x.shape
    pointers = (a.data_ptr() if isinstance(a, Tensor) else a for a in (x, *arguments))
    getattr(load(), name)(rows, width, torch.get_num_threads(), *pointers)
