"""Whether the Triton kernels can compute a call. Does not import triton."""

import importlib.util

import torch
from torch import Tensor

from dape.extras import install_command
from dape.ops.attention.check import why_off
from dape.ops.attention.triton_kernels.interpreted import INTERPRETED
from dape.ops.attention.triton_kernels.plan import MAX_HEADS, MAX_HIDDEN, MAX_WIDTH, SMALL_SHARED, Sizes, gpu_of
from dape.positional.base import ScoreForm

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@torch.compiler.assume_constant_result  # not traced
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def serves(device: torch.device) -> bool:
    """Whether ``auto`` uses these kernels on the device."""
    return device.type == "cuda"


def why_not_triton(q: Tensor, k: Tensor, v: Tensor, form: ScoreForm) -> str | None:
    """The reason why the kernels cannot compute this call, or None. ``trust.py`` decides whether they compute it
    correctly on this GPU."""
    if off := why_off():
        return off
    if q.device.type != "cuda" and not INTERPRETED:
        return f"the Triton kernels are for GPUs, q is on {q.device}"
    if not _installed():
        return f"triton is not installed ({install_command('triton')})"
    if q.dtype not in DTYPES:
        return f"the Triton kernels compute in float32, q is {q.dtype}"
    if q.shape[1] > MAX_HEADS:
        return f"the Triton kernels hold all heads in a tile, at most {MAX_HEADS}; q has {q.shape[1]}"
    if max(q.shape[3], v.shape[3]) > MAX_WIDTH:
        return f"the Triton kernels take heads of width {MAX_WIDTH} at most, q has {q.shape[3]}, v {v.shape[3]}"
    if form.mix is not None and len(form.mix.wa) > MAX_HIDDEN:
        return f"the Triton kernels take {MAX_HIDDEN} hidden units at most, f has {len(form.mix.wa)}"
    if far := max(_span(x) for x in (q, k, v)) >> 31:
        return f"the Triton kernels use 32-bit indices within an item; this call needs {far} times their range"
    return None if INTERPRETED else why_no_room(q, v, form)


def _span(x: Tensor) -> int:
    """The distance between the first and the last number of an item."""
    return sum((size - 1) * abs(stride) for size, stride in zip(x.shape[1:], x.stride()[1:], strict=True) if size)


def why_no_room(q: Tensor, v: Tensor, form: ScoreForm) -> str | None:
    """The reason why the kernels do not fit in shared memory, or None."""
    gpu = gpu_of(q.device)
    if gpu is None:
        return f"the Triton kernels need {SMALL_SHARED} bytes of shared memory for a program, more than this GPU has"
    sizes = Sizes(
        heads=q.shape[1],
        group=1,
        width=q.shape[3],
        values=v.shape[3],
        hidden=1 if form.mix is None else len(form.mix.wa),
        item_bytes=q.element_size(),
        gpu=gpu,
    )
    if not sizes.fits:
        what = f"{q.shape[1]} heads and {sizes.hidden} hidden units in {q.dtype}"
        return f"{what} do not fit into the shared memory of this GPU"
    return None
