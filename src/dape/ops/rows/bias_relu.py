"""``relu(x + bias)`` and its gradient, in place: for the largest arrays of a feed-forward network."""

import torch
from jaxtyping import Float
from torch import Tensor

from dape.ops.rows import library


def bias_relu_(x: Float[Tensor, "n m"], bias: Float[Tensor, " m"]) -> Float[Tensor, "n m"]:
    if bias.shape != x.shape[1:] or not library.usable(x, bias):
        return x.add_(bias).relu_()
    library.run("dape_bias_relu", x, bias)
    return x


def bias_relu_backward_(d: Float[Tensor, "n m"], out: Float[Tensor, "n m"]) -> Float[Tensor, " m"]:
    """``d`` becomes the gradient of x; returns that of the bias."""
    if not library.usable(d, out):
        torch.ops.aten.threshold_backward.grad_input(d, out, 0, grad_input=d)
        return d.sum(0)
    d_bias = d.new_zeros(torch.get_num_threads(), d.shape[-1])
    library.run("dape_bias_relu_backward", d, out, d_bias)
    return d_bias.sum(0)
