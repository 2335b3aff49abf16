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
    whole = library.usable(x, w1, b1, w2, b2, widths=tuple(w1.shape))
    return (_Whole if whole else _Stepwise).apply(x, w1, b1, w2, b2)


class _Whole(torch.autograd.Function):
    """A few rows at a time through the whole network, so that their hidden values stay in the cache."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        x, w1, w2 = (z.contiguous() for z in (x, w1, w2))
        shape = (*x.shape, len(w1))
        hidden, y = x.new_empty(len(x), len(w1)), torch.empty_like(x)
        library.run("dape_feed_forward", *shape, x, w1, b1.contiguous(), w2, b2.contiguous(), hidden, y)
        ctx.save_for_backward(x, hidden, w1, w2)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, hidden, w1, w2 = ctx.saved_tensors
        dx, dw1, dw2 = (torch.empty_like(z) for z in (x, w1, w2))
        db1, db2 = x.new_zeros(len(w1)), x.new_zeros(len(w2))
        dy = dy.contiguous()
        library.run("dape_feed_forward_backward", *x.shape, len(w1), x, hidden, w1, w2, dy, dx, dw1, db1, dw2, db2)
        return dx, dw1, db1, dw2, db2


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
