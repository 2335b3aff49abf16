"""``norm(x + drop(y))``, the end of each half of a post-norm block."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dape.ops.rows import library
from dape.ops.rows.dropout import Dropout


def add_norm(
    x: Float[Tensor, "*s m"], y: Float[Tensor, "*s m"], norm: nn.LayerNorm, dropout: Dropout | None
) -> Float[Tensor, "*s m"]:
    """``dropout`` is of ``y`` alone."""
    if not _plain(x, y, norm):
        return norm(x + (y if dropout is None else dropout(y)))
    return _AddNorm.apply(x, y, norm.weight, norm.bias, norm.eps, dropout)


def _plain(x: Tensor, y: Tensor, norm: nn.LayerNorm) -> bool:
    weight, bias = norm.weight, norm.bias
    if weight is None or bias is None or x.shape != y.shape or weight.shape != x.shape[-1:]:
        return False
    return weight.is_contiguous() and bias.is_contiguous() and library.usable(x, y, weight, bias)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, eps: float, dropout: Dropout | None
    ) -> Tensor:
        x, y = x.contiguous(), y.contiguous()
        width = x.shape[-1]
        total, out, rows = torch.empty_like(x), torch.empty_like(x), x.numel() // width
        mean, scale = x.new_empty(2, rows)
        library.run(
            "dape_add_norm", x.view(rows, width), y, *_drop(dropout), weight, bias, eps, total, mean, scale, out
        )
        ctx.save_for_backward(total, mean, scale, weight)
        ctx.dropout = dropout
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        total, mean, scale, weight = ctx.saved_tensors
        d_out, width = d_out.contiguous(), total.shape[-1]
        d_x = torch.empty_like(total)
        d_y = d_x if ctx.dropout is None else torch.empty_like(total)
        d_weight, d_bias = total.new_zeros(2, torch.get_num_threads(), width)
        library.run(
            *("dape_add_norm_backward", d_out.view(-1, width), total, mean, scale),
            *(*_drop(ctx.dropout), weight, d_x, d_y, d_weight, d_bias),
        )
        return d_x, d_y, d_weight.sum(0), d_bias.sum(0), None, None


def _drop(dropout: Dropout | None) -> tuple[Tensor | None, int, float]:
    return (None, 0, 1.0) if dropout is None else (dropout.lanes, dropout.lowest, dropout.factor)
