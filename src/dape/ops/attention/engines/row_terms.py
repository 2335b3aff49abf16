"""The terms of a :data:`~dape.positional.row_forms.RowForm`: tensors for engines, each with a gradient."""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class ProductTerms(NamedTuple):
    """Logits ``(q_i . k_j + second_i . table[lag]) / sqrt(d)``."""

    second: Float[Tensor, "b h q d"]
    table: Float[Tensor, "h n d"]
    """``queries + keys - 1`` entries, from the largest lag (the last query and key 0) downwards in steps of 1."""


class CountTerms(NamedTuple):
    """Logits ``A_ij + z_i`` at place ``p_ij``; see :class:`~dape.positional.row_forms.ContentCount`."""

    z: Float[Tensor, "b h q p"]


class ConvolutionTerms(NamedTuple):
    """Logits ``A + static[lag] + w2 * H``, ``H = shown . leaky(wa * (shown . A) + pre[lag])``, where ``*`` is a
    convolution over neighbouring keys, and ``shown`` is 1 for visible cells and 0 for others."""

    static: Float[Tensor, "h n"]
    pre: Float[Tensor, "D n"]
    """In the order of :class:`ProductTerms`. Includes the convolution of B."""
    edges: Float[Tensor, "e D q"]
    """``pre`` of the first and the last keys, whose neighbours are partly missing: (taps // 2) keys at each end."""
    wa: Float[Tensor, "D h t"]
    w2: Float[Tensor, "h D t"]


RowFormTerms = ProductTerms | CountTerms | ConvolutionTerms
KINDS: dict[str, Callable[..., RowFormTerms]] = {
    "relative": ProductTerms,
    "counted": CountTerms,
    "convolved": ConvolutionTerms,
}
"""By the name of the kernel's source file."""
