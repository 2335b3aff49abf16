"""Logits in closed form beyond ``A + B + f(A, B)``: what a cell adds depends on its query's own numbers or on other cells
of its row. An encoding says which of these it is (:meth:`PositionalEncoding.row_form`); an operator that knows nothing
of encodings computes each with a kernel of its own kind, and whole rows where no kernel takes the call."""

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


@dataclass(frozen=True, kw_only=True)
class ContentCount:
    """``A_ij + (q_i table) at p_ij``, linear between whole numbers, where p_ij is the sum of sigmoid(A) over the visible
    keys from j on, at most the last place of the table. Causal."""

    table: Float[Tensor, "d p"]


RowForm = RelativeProduct | ContentCount
