"""The arguments of attention whose position terms are tables over lags, as ``lag_tables.py`` gives them to engines."""

from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor


class LagCall(NamedTuple):
    q: Float[Tensor, "b h q d"]
    k: Float[Tensor, "b g k d"]
    v: Float[Tensor, "b g k e"]
    static: Float[Tensor, "h n"] | None
    wa: Float[Tensor, "D h"] | None
    pre: Float[Tensor, "D n"] | None
    w2: Float[Tensor, "h D"] | None
    key_padding_mask: Bool[Tensor, "b k"] | None
    offset: int
    causal: bool
    learns_static: bool
    """Whether the backward pass is to give a gradient of ``static``."""

    @property
    def queries(self) -> int:
        return self.q.shape[2]

    @property
    def lags(self) -> int:
        """Entries of a table."""
        return self.q.shape[2] + self.k.shape[2] - 1

    @property
    def causal_offset(self) -> int | None:
        return self.offset if self.causal else None
