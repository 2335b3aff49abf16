"""Linear layers in float32 on AMD processors with AVX-512: by oneDNN, which is twice as fast there.

PyTorch multiplies float32 matrices on a CPU with MKL, which uses AVX-512 on Intel's processors only. oneDNN, which
PyTorch brings as well, uses it on AMD's too: a training step of the model of ``dape compare`` takes two thirds of its
time. The results differ in the last bits, so the choice depends on processor and shapes alone, never on a measurement.
"""

import functools
import math
import re
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad

from dape.modules import is_plain
from dape.ops import native, prebuilt
from dape.ops.switch import kernels_mode

LEAST = 1 << 22
"""Multiplications below which a call of oneDNN costs more than it saves."""


def linear(layer: nn.Module, x: Float[Tensor, "*b m"]) -> Float[Tensor, "*b n"]:
    """``layer(x)``; the product is oneDNN's where that is faster and the layer is a plain ``nn.Linear``."""
    if not _asked() or not isinstance(layer, nn.Linear) or not is_plain(layer, nn.Linear):
        return layer(x)
    return product(x, layer.weight, layer.bias)


def product(x: Float[Tensor, "*b m"], weight: Float[Tensor, "n m"], bias: Float[Tensor, " n"] | None) -> Tensor:
    """``torch.nn.functional.linear``, by oneDNN where that is faster."""
    if not (_asked() and _large(x, weight) and _eager(x, weight) and kernels_mode() != "off"):
        return nn.functional.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)


def _asked() -> bool:
    """torch.compile must not trace ``serves``: Dynamo warns of its cache."""
    return not torch.compiler.is_compiling() and serves()


@functools.cache
def serves() -> bool:
    """Whether PyTorch has both libraries, and MKL does not use what this processor can."""
    amd = re.search(r"^model name\s*:.*\bAMD\b", native.processor(), re.MULTILINE) is not None
    both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return amd and both and "avx512f" in prebuilt.features() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _large(x: Tensor, weight: Tensor) -> bool:
    return x.numel() * weight.shape[0] >= LEAST and x.numel() // max(1, x.shape[-1]) > 1


def _eager(*tensors: Tensor) -> bool:
    """Whether these are plain float32 tensors on a CPU, and nothing traces or changes what PyTorch computes."""
    return (
        all(type(x) in (Tensor, nn.Parameter) and x.is_cpu and x.dtype == torch.float32 for x in tensors)
        and not torch._C._is_tracing()
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


class _Linear(torch.autograd.Function):
    """The gradients are products of the same kind, and have gradients themselves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (x, weight) = grads, ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad
        rows = math.prod(grad.shape[:-1])
        flat = grad.reshape(rows, -1)
        return (
            product(flat, weight.t(), None).view(x.shape) if need_x else None,
            _of_weight(flat, x.reshape(rows, -1)) if need_weight else None,
            flat.sum(0) if need_bias else None,
        )


def _of_weight(grad: Float[Tensor, "r n"], x: Float[Tensor, "r m"]) -> Float[Tensor, "n m"]:
    """``grad' x``, with the larger side as oneDNN's columns."""
    if grad.shape[1] > x.shape[1]:
        return product(x.t(), grad.t(), None).t()
    return product(grad.t(), x.t(), None)


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
