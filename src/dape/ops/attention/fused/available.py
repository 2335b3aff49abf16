"""Whether the compiled kernel can serve a call. Where it cannot be built, that is said once, and never an error."""

import functools
import os
import warnings

import torch
from torch import Tensor

from dape.ops.attention.check import why_off

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SWITCH = "DAPE_FUSED"


def why_not_compiled(q: Tensor) -> str | None:
    """None if the kernel can take this call."""
    if off := why_off():
        return off
    if q.device.type != "cpu":
        return f"the compiled kernel is for CPUs, q is on {q.device}"
    if q.dtype not in DTYPES:
        return f"the compiled kernel computes in float32, q is {q.dtype}"
    return _why_not_built()


@torch.compiler.assume_constant_result  # and traced no further
def _why_not_built() -> str | None:
    return _try()


@functools.cache
def _try() -> str | None:
    from dape.ops.attention.fused.library import load

    if os.environ.get(SWITCH) == "0":
        return f"the environment variable {SWITCH} is 0"
    try:
        load()
    except (OSError, RuntimeError, UnicodeError) as error:  # RuntimeError: there is no home for the cache
        warnings.warn(
            f"dape's compiled attention kernel is not available, attention will be slower: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return str(error)
    return None
