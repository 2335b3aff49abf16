"""What engines are given for a :data:`~dape.positional.row_forms.RowForm`: tensors, of which each has a gradient."""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class ProductTerms(NamedTuple):
    """Logits ``(q_i . k_j + second_i . table[lag]) / sqrt(d)``."""

    second: Float[Tensor, "b h q d"]
    table: Float[Tensor, "h n d"]
    """From the largest lag, that of the last query and key 0, downwards in steps of 1: ``queries + keys - 1``."""


class CountTerms(NamedTuple):
    """Logits ``A_ij + z_i at p_ij``: see :class:`~dape.positional.row_forms.ContentCount`."""

    z: Float[Tensor, "b h q p"]


class ConvolutionTerms(NamedTuple):
    """Logits ``A + static[lag] + w2 * H``, ``H = shown . leaky(wa * (shown . A) + pre[lag])``; ``*``: convolution over
    neighbouring keys."""

    static: Float[Tensor, "h n"]
    pre: Float[Tensor, "D n"]
    """Like the table of :class:`ProductTerms`; with the convolution of B in it."""
    edges: Float[Tensor, "e D q"]
    """``pre`` of the first keys, then of the last, half as many each as the convolution has taps, rounded down: some of
    their neighbours are missing."""
    wa: Float[Tensor, "D h t"]
    w2: Float[Tensor, "h D t"]


RowFormTerms = ProductTerms | CountTerms | ConvolutionTerms
KINDS: dict[str, Callable[..., RowFormTerms]] = {
    "relative": ProductTerms,
    "counted": CountTerms,
    "convolved": ConvolutionTerms,
}
"""By the name of the kernel's source."""
