"""Closed forms of logits that are not ``A + B + f(A, B)``: a logit also depends on the content of its query, or on
other cells of its row. :meth:`PositionalEncoding.row_form` returns one of these. An operator computes each with a
kernel for this form, or with whole rows if no kernel supports the call, and need not know the encoding."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from dape.positional.grid import Grid


@dataclass(frozen=True, kw_only=True)
class RelativeProduct:
    """``[ (q_i + u) . k_j + (q_i + v) . r(lag) ] / sqrt(d)``."""

    u: Float[Tensor, "h d"]
    v: Float[Tensor, "h d"]
    at: Callable[[Int[Tensor, " n"], Grid], Float[Tensor, "h n d"]]
    """``at(lags, grid)``: r of true lags, which the grid's draw may replace."""
    second: Callable[[Grid], Float[Tensor, "b h q d"]] | None = None
    """Replaces ``q_i + v`` in the product with r, if it is computed from features."""


@dataclass(frozen=True, kw_only=True)
class ContentCount:
    """``A_ij + (q_i table)[p_ij]``, interpolated linearly between whole numbers, where p_ij is the sum of sigmoid(A)
    over the visible keys from j on, and at most the last index of the table. Causal."""

    table: Float[Tensor, "d p"]


@dataclass(frozen=True, kw_only=True)
class KeyConvolution:
    """``A + B + w2 * H + b2``, ``H = shown . leaky(wa * (shown . A) + wb * (shown . B) + b1)``: convolutions over an
    odd number of neighbouring keys of the same row; ``shown`` is 0 at hidden cells, else 1."""

    bias: Callable[..., Float[Tensor, "h *s"]] | None
    """``bias(lag, causal=...)`` if there is a B; it depends on the lag alone."""
    wa: Float[Tensor, "D h t"]
    wb: Float[Tensor, "D h t"] | None
    b1: Float[Tensor, " D"]
    w2: Float[Tensor, "h D t"]
    b2: Float[Tensor, " h"]


RowForm = RelativeProduct | ContentCount | KeyConvolution
