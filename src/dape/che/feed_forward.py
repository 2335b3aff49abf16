"""The encoder's feed-forward network, ``W2 relu(W1 x + b1) + b2``, in fewer passes over memory than autograd takes.

The hidden values are the largest arrays of the model: bias, ReLU and the gradient of ReLU happen in place.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dape.ops.products import mm
from dape.ops.rows.bias_relu import bias_relu_, bias_relu_backward_


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Float[Tensor, "b t m"]) -> Float[Tensor, "b t m"]:
        y = _InPlace.apply(x.flatten(0, -2), self.up.weight, self.up.bias, self.down.weight, self.down.bias)
        return y.view_as(x)


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        hidden = bias_relu_(mm(x, w1.t()), b1)
        ctx.save_for_backward(x, hidden, w1, w2)
        return mm(hidden, w2.t()).add_(b2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, hidden, w1, w2 = ctx.saved_tensors
        dw2, dhidden = mm(dy.t(), hidden), mm(dy, w2)
        db1 = bias_relu_backward_(dhidden, hidden)
        return mm(dhidden, w1), mm(dhidden.t(), x), db1, dw2, dy.sum(0)
