"""Logits in closed form beyond ``A + B + f(A, B)``: what a cell adds depends on its query's own numbers or on other
cells of its row. An encoding says which of these it is (:meth:`PositionalEncoding.row_form`); an operator that knows
nothing of encodings computes each with a kernel of its own kind, and whole rows where no kernel takes the call."""

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
    """``at(lags, grid)``: r of true lags, read as the grid reads them."""
    second: Callable[[Grid], Float[Tensor, "b h q d"]] | None = None
    """What meets r in place of ``q_i + v``, if it is made of features."""


@dataclass(frozen=True, kw_only=True)
class ContentCount:
    """``A_ij + (q_i table) at p_ij``, linear between whole numbers, where p_ij is the sum of sigmoid(A) over the
    visible keys from j on, at most the last place of the table. Causal."""

    table: Float[Tensor, "d p"]


@dataclass(frozen=True, kw_only=True)
class KeyConvolution:
    """``A + B + w2 * H + b2``, ``H = shown . leaky(wa * (shown . A) + wb * (shown . B) + b1)``: convolutions over an
    odd number of neighbouring keys of the same row, and shown 0 at hidden cells."""

    bias: Callable[..., Float[Tensor, "h *s"]] | None
    """``bias(lag, causal=...)`` if there is a B; it depends on the lag alone."""
    wa: Float[Tensor, "D h t"]
    wb: Float[Tensor, "D h t"] | None
    b1: Float[Tensor, " D"]
    w2: Float[Tensor, "h D t"]
    b2: Float[Tensor, " h"]


RowForm = RelativeProduct | ContentCount | KeyConvolution
