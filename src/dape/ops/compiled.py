"""C++ files of ours as functions on tensors, for the small operations around attention."""

import ctypes
import functools
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dape.ops.attention.fused.available import why_not_compiled
from dape.ops.native import build


class Compiled:
    """Functions of one file, with the types of their arguments, compiled when they are first asked for."""

    def __init__(self, source: Path, what: str, functions: Mapping[str, Sequence[Any]]) -> None:
        """``what`` will be slower without them."""
        self.source, self.what, self.functions = source, what, functions

    def usable(self, *tensors: Tensor) -> bool:
        """In float32 on a CPU with a compiler; PyTorch's own operations compute the same elsewhere."""
        plain = all(x.dtype == torch.float32 and x.device.type == "cpu" for x in tensors)
        return plain and not torch.compiler.is_compiling() and why_not_compiled(tensors[0]) is None and self.loads

    @functools.cached_property
    def loads(self) -> bool:
        try:
            self.library  # noqa: B018
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

    def __call__(self, name: str, *arguments: Tensor | float | None) -> None:
        """Tensors contiguous. Every function returns 0, or 1 for want of memory."""
        pointers = (a.data_ptr() if isinstance(a, Tensor) else a for a in arguments)
        if getattr(self.library, name)(*pointers):
            raise MemoryError(f"there is no memory for what {name} needs")
