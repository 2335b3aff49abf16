"""What engines are given for a :data:`~dape.positional.row_forms.RowForm`: tensors, of which each has a gradient."""

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


RowFormTerms = ProductTerms | CountTerms
KINDS: dict[str, type[ProductTerms] | type[CountTerms]] = {"relative": ProductTerms, "counted": CountTerms}
"""By the name of the kernel's source."""
