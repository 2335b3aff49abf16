"""Kerple (Chi et al., 2022), with |i - j| the distance and learnable r1_h, r2_h > 0:

logarithmic   b_h(i, j) = -r1_h log(1 + r2_h |i - j|)          r1 ~ U(0, 2), r2 ~ U(0, 1), both kept >= 0.01
power         b_h(i, j) = -r1_h |i - j|^r2_h                   r1 ~ U(0, 1), r2 ~ U(0, 2), both kept >= 0.01, r2 <= 2

The authors of DAPE call r1, r2 ``bias_p``, ``bias_a`` (log) and ``bias_a``, ``bias_p`` (power).
"""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dape.positional.base import (
    AttentionDims,
    BidirectionalForm,
    RelativeBias,
    accurate,
    asymmetric_distance,
    column,
    require_choice,
)

FLOOR = 0.01


def kerple_log(
    distance: Float[Tensor, "*s"], r1: Float[Tensor, "h *o"], r2: Float[Tensor, "h *o"]
) -> Float[Tensor, "h *s"]:
    return -r1 * torch.log1p(r2 * distance)


def kerple_power(
    distance: Float[Tensor, "*s"], r1: Float[Tensor, "h *o"], r2: Float[Tensor, "h *o"]
) -> Float[Tensor, "h *s"]:
    # torch's pow gives the correct gradient 0 of 0^r2.
    return -r1 * distance**r2


class Kerple(RelativeBias):
    """The logarithmic kernel, the paper's usual base for DAPE."""

    initial_range: ClassVar[tuple[float, float]] = (2.0, 1.0)
    ceiling: ClassVar[tuple[float | None, float | None]] = (None, None)
    kernel = staticmethod(kerple_log)

    def __init__(self, dims: AttentionDims, *, bidirectional: BidirectionalForm = "past_bonus") -> None:
        super().__init__(dims)
        self.bidirectional: BidirectionalForm = require_choice("bidirectional", bidirectional, BidirectionalForm)
        high1, high2 = self.initial_range
        self.r1 = nn.Parameter(torch.rand(dims.num_heads) * high1)
        self.r2 = nn.Parameter(torch.rand(dims.num_heads) * high2)
        self.project_()

    def bias_at(self, lag: Int[Tensor, "*s"], *, causal: bool) -> Float[Tensor, "h *s"]:
        distance = asymmetric_distance(lag, causal=causal, form=self.bidirectional, dtype=self.precision)
        r1, r2 = (
            column(in_range(accurate(p), top), lag) for p, top in zip((self.r1, self.r2), self.ceiling, strict=True)
        )
        return self.kernel(distance, r1, r2)

    @torch.no_grad()
    def project_(self) -> None:
        for parameter, top in zip((self.r1, self.r2), self.ceiling, strict=True):
            parameter.clamp_(FLOOR, top)


class KerplePower(Kerple):
    initial_range = (1.0, 2.0)
    ceiling = (None, 2.0)
    kernel = staticmethod(kerple_power)


def in_range(parameter: Float[Tensor, " h"], top: float | None) -> Float[Tensor, " h"]:
    """The clamped value with the gradient of the parameter itself. An optimizer step may leave the range; with the
    gradient of ``clamp``, which is 0 there, the parameter could not return."""
    return parameter + (parameter.clamp(FLOOR, top) - parameter).detach()
