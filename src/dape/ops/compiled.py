"""C++ files of ours as functions on tensors, for the small operations around attention."""

import ctypes
import functools
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dape.ops.attention.fused.available import why_not_compiled
from dape.ops.native import build


class Compiled:
    """Functions of one file, with the types of their arguments, compiled when they are first asked for."""

    def __init__(self, source: Path, what: str, functions: Mapping[str, Sequence[Any]]) -> None:
        """``what`` will be slower without them."""
        self.source, self.what, self.functions = source, what, functions

    def usable(self, *tensors: Tensor) -> bool:
        """In float32 on a CPU with a compiler; PyTorch's own operations compute the same elsewhere."""
        return (
            not _is_watched() and all(map(_is_plain, tensors)) and why_not_compiled(tensors[0]) is None and self.loads
        )

    @functools.cached_property
    def loads(self) -> bool:
        try:
            _ = self.library
        except OSError as error:
            warnings.warn(
                f"dape's compiled {self.what} are not available, they will be slower: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
            return False
        return True

    @functools.cached_property
    def library(self) -> ctypes.CDLL:
        library = ctypes.CDLL(str(build(self.source)))
        for name, arguments in self.functions.items():
            getattr(library, name).argtypes = arguments
        return library

    def __call__(self, name: str, sizes: Sequence[int], *arguments: Tensor | float | None) -> None:
        """Tensors contiguous. The function returns 0, or 1 for want of memory."""
        pointers = (a.data_ptr() if isinstance(a, Tensor) else a for a in arguments)
        if getattr(self.library, name)(*sizes, *pointers):
            raise MemoryError(f"there is no memory for what {name} needs, with sizes {tuple(sizes)}")


def _is_watched() -> bool:
    """Whether somebody records, transforms or replaces what PyTorch computes, and so must see its operations."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch.is_autocast_enabled("cpu")
        or torch._C._len_torch_dispatch_stack() > 0  # modes: fake tensors, counters of operations
        or torch._C._are_functorch_transforms_active()  # vmap, jvp
    )


def _is_plain(x: Tensor) -> bool:
    """Numbers in memory that mean what they say."""
    ordinary = type(x) in (Tensor, nn.Parameter) and x.layout is torch.strided and not x.is_neg()
    return ordinary and x.dtype == torch.float32 and x.device.type == "cpu"
