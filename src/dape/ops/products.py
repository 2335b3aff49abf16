"""Matrix products of linear layers, in a process of our own by the BLAS that is faster there.

PyTorch brings Intel's MKL. On AMD processors numpy's OpenBLAS is 3 to 9% faster at the shapes of a small transformer
(docs/lab-notes.md, 2026-11-17), on one thread: with more, the two would not share their threads.
"""

import functools
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dape.ops.native import processor

_by_numpy = False


def choose_blas() -> str | None:
    """For the rest of the process, so not in a library: numpy's products will take one thread. Returns why PyTorch's
    BLAS stays, or None."""
    global _by_numpy
    why_not = _why_not_numpy()
    if why_not is None and not _by_numpy:
        _openblas().limit(limits=1)
        _by_numpy = True
    return why_not


def _why_not_numpy() -> str | None:
    if "AMD" not in processor():
        return "the processor is not one of AMD's"
    if not len(_openblas()):
        return "numpy was built without OpenBLAS"
    return None


@functools.cache
def _openblas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(internal_api="openblas")


def mm(a: Float[Tensor, "n k"], b: Float[Tensor, "k m"]) -> Float[Tensor, "n m"]:
    """Not differentiable: for autograd functions."""
    if not _suits(a, b):
        return torch.mm(a, b)
    out = a.new_empty(a.shape[0], b.shape[1])
    np.matmul(a.detach().numpy(), b.detach().numpy(), out=out.numpy())
    return out


def linear(x: Float[Tensor, "*s k"], weight: Float[Tensor, "m k"], bias: Tensor | None) -> Float[Tensor, "*s m"]:
    if not _suits(x, weight):
        return nn.functional.linear(x, weight, bias)
    y: Tensor = _Linear.apply(x.reshape(-1, x.shape[-1]), weight).view(*x.shape[:-1], len(weight))
    return y if bias is None else y + bias


class Linear(nn.Linear):
    def forward(self, x: Float[Tensor, "*s k"]) -> Float[Tensor, "*s m"]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return linear(x, self.weight, self.bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return mm(x, weight.t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        return mm(dy, weight), mm(dy.t(), x)


def _suits(*operands: Tensor) -> bool:
    if not _by_numpy or torch.get_num_threads() > 1 or torch.compiler.is_compiling():
        return False
    return all(x.device.type == "cpu" and x.dtype == torch.float32 for x in operands)
