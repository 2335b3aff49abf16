"""``W2 relu(W1 x + b1) + b2`` and its gradients. The hidden values are the largest arrays of a small model."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from dape.ops.products import library
from dape.ops.products.linear import across, times, times_turned
from dape.ops.rows.bias_relu import bias_relu_, bias_relu_backward_


def feed_forward(
    x: Float[Tensor, "n k"],
    w1: Float[Tensor, "m k"],
    b1: Float[Tensor, " m"],
    w2: Float[Tensor, "k m"],
    b2: Float[Tensor, " k"],
) -> Float[Tensor, "n k"]:
    return (_Whole if _suits(x, w1, b1, w2, b2) else _Stepwise).apply(x, w1, b1, w2, b2)


def _suits(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> bool:
    """Where shapes do not fit together, PyTorch says so."""
    fit = x.dim() == w1.dim() == 2 and x.shape[1:] == w1.shape[1:] == b2.shape and b1.shape == w1.shape[:1]
    if not fit or w2.shape != (*b2.shape, *b1.shape):
        return False
    return library.usable(x, w1, b1, w2, b2, rows=len(x), widths=tuple(w1.shape))


class _Whole(torch.autograd.Function):
    """A few rows at a time through the whole network, so that their hidden values stay in the cache."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        x, w1, w2 = (z.contiguous() for z in (x, w1, w2))
        sizes = (*x.shape, len(w1))
        hidden, y = x.new_empty(len(x), len(w1)), torch.empty_like(x)
        library.run("dape_feed_forward", sizes, x, w1, b1.contiguous(), w2, b2.contiguous(), hidden, y)
        ctx.save_for_backward(x, hidden, w1, w2)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, hidden, w1, w2 = ctx.saved_tensors
        dx, dw1, dw2 = (torch.empty_like(z) for z in (x, w1, w2))
        db1, db2 = x.new_zeros(len(w1)), x.new_zeros(len(w2))
        inputs, outputs = (x, hidden, w1, w2, dy.resolve_neg().contiguous()), (dx, dw1, db1, dw2, db2)
        library.run("dape_feed_forward_backward", (*x.shape, len(w1)), *inputs, *outputs)
        return outputs


class _Stepwise(torch.autograd.Function):
    """Bias, ReLU and the gradient of ReLU happen in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        hidden = bias_relu_(times_turned(x, w1), b1)
        ctx.save_for_backward(x, hidden, w1, w2)
        return times_turned(hidden, w2).add_(b2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, hidden, w1, w2 = ctx.saved_tensors
        dw2, dhidden = across(dy, hidden), times(dy, w2)
        db1 = bias_relu_backward_(dhidden, hidden)
        return times(dhidden, w1), across(dhidden, x), db1, dw2, dy.sum(0)
