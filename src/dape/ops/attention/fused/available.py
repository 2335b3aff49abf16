"""Whether the compiled kernel can take a call. If there is no kernel, one warning says so; it is never an error."""

import functools
import warnings

import torch
from torch import Tensor

from dape.ops.attention.check import why_off
from dape.ops.switch import FUSED_SWITCH, fused_mode

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def why_not_compiled(q: Tensor) -> str | None:
    """The reason why the compiled kernels cannot compute this call, or None."""
    if off := why_off():
        return off
    if q.device.type != "cpu":
        return f"the compiled kernel is for CPUs, q is on {q.device}"
    if q.dtype not in DTYPES:
        return f"the compiled kernel computes in float32, q is {q.dtype}"
    return why_not_built()


@torch.compiler.assume_constant_result  # its body is not traced
def why_not_built(kind: str | None = None) -> str | None:
    """The reason why the kernel, or that of a kind (``kinds.py``), is not available, or None."""
    return _try(kind)


@functools.cache
def _try(kind: str | None) -> str | None:
    from dape.ops.attention.fused import kinds, library

    if fused_mode() == "0":
        return f"the environment variable {FUSED_SWITCH} is 0"
    try:
        library.load() if kind is None else kinds.load(kind)
    except (OSError, RuntimeError, UnicodeError) as error:  # RuntimeError: no home folder for the cache
        warnings.warn(
            f"dape's compiled attention kernel is not available, attention will be slower: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return str(error)
    return None
