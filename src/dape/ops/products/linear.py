"""A linear layer and the three products it is made of. The products are not differentiable: for autograd functions."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dape.ops.products import library


def times(a: Float[Tensor, "n k"], b: Float[Tensor, "k m"]) -> Float[Tensor, "n m"]:
    """``a b``"""
    if not (_is_product(a, 1, b, 0) and library.usable(a, b, rows=len(a), widths=(b.shape[1],))):
        return torch.mm(a, b)
    return _multiply(a, b, a.new_empty(len(a), b.shape[1]), turned=False)


def times_turned(a: Float[Tensor, "n k"], b: Float[Tensor, "m k"]) -> Float[Tensor, "n m"]:
    """``a b'``"""
    if not (_is_product(a, 1, b, 1) and library.usable(a, b, rows=len(a), widths=(len(b),))):
        return torch.mm(a, b.t())
    return _multiply(a, b, a.new_empty(len(a), len(b)), turned=True)


def _multiply(a: Tensor, b: Tensor, out: Tensor, *, turned: bool) -> Tensor:
    library.run("dape_multiply", (*a.shape, out.shape[1]), a.contiguous(), b.contiguous(), turned, out)
    return out


def across(a: Float[Tensor, "n k"], b: Float[Tensor, "n m"]) -> Float[Tensor, "k m"]:
    """``a' b``, the sum over rows of their products."""
    if not (_is_product(a, 0, b, 0) and library.usable(a, b, rows=len(a), widths=(b.shape[1],))):
        return torch.mm(a.t(), b)
    out = a.new_empty(a.shape[1], b.shape[1])
    library.run("dape_across", (*a.shape, b.shape[1]), a.contiguous(), b.contiguous(), out)
    return out


def _is_product(a: Tensor, of: int, b: Tensor, over: int) -> bool:
    """Else PyTorch says what is wrong."""
    return a.dim() == b.dim() == 2 and a.shape[of] == b.shape[over] and a.numel() > 0


def linear(x: Float[Tensor, "*s k"], weight: Float[Tensor, "m k"], bias: Tensor | None) -> Float[Tensor, "*s m"]:
    if not _suits(x, weight, bias):
        return nn.functional.linear(x, weight, bias)
    y: Tensor = _Linear.apply(x.reshape(-1, x.shape[-1]), weight).view(*x.shape[:-1], len(weight))
    return y if bias is None else y + bias


def _suits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    if weight.dim() != 2 or x.shape[-1:] != weight.shape[1:] or x.numel() == 0:
        return False
    if bias is not None and (bias.dtype != x.dtype or bias.shape != weight.shape[:1]):
        return False
    return library.usable(x, weight, rows=x.numel() // x.shape[-1], widths=(len(weight),))


class Linear(nn.Linear):
    def forward(self, x: Float[Tensor, "*s k"]) -> Float[Tensor, "*s m"]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return linear(x, self.weight, self.bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return times_turned(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        of_x, of_weight = ctx.needs_input_grad
        return times(dy, weight) if of_x else None, across(dy, x) if of_weight else None
