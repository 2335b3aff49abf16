"""One conformance vector: the inputs of a small attention call, its parameters, and the expected values.

Shapes have no batch axis. Logits are compared for the queries at ``q_pos``. If the case has content, q and k are the
tokens 0, 1, 2, ... of one sequence, so ``q_pos`` are also the compared rows of ``q``.

The gradients are those of ``loss = sum(weight * softmax(logits))``, with the softmax over visible keys, so that
attention functions can be compared too. For an encoding of the embeddings they are those of ``sum(weight * embedded)``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dape.positional.base import AttentionDims
from dape.positional.grid import Grid


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    dims: AttentionDims
    options: Mapping[str, Any]
    """Options of the encoding, as for ``dape.build``."""
    causal: bool
    q_pos: Int[Tensor, " q"]
    k_pos: Int[Tensor, " k"]
    parameters: Mapping[str, Float[Tensor, "..."]]
    """By their names in the state dict of the reference."""
    q: Float[Tensor, "h t d"] | None = None
    """None if the case has only positions: the scores are 0 and the logits are the bias."""
    k: Float[Tensor, "h t d"] | None = None
    x: Float[Tensor, "t m"] | None = None
    """Embeddings of the tokens at ``q_pos``, for encodings of embeddings."""
    entering: Float[Tensor, "t m"] | None = None
    """The input of the attention layer at 0, 1, 2, ..., for encodings that read features."""
    weight: Float[Tensor, "..."] | None = None
    """The weight in the loss; None if no gradients are compared."""
    expected: Float[Tensor, "..."] = field(default_factory=lambda: torch.empty(0))
    """Logits ``[h, q, k]`` with 0 at hidden cells, or embeddings ``[t, m]`` if ``x`` is given."""
    gradients: Mapping[str, Float[Tensor, "..."]] = field(default_factory=dict)
    """The gradients of q, k, x, entering and of the parameters, by name."""

    @property
    def length(self) -> int:
        """The length of the sequence: the largest position plus 1."""
        return int(max(self.q_pos.max(), self.k_pos.max())) + 1

    @property
    def stretch(self) -> float:
        """The length divided by the training length, at least 1."""
        return max(1.0, self.length / self.dims.train_length)

    @property
    def grid(self) -> Grid:
        return Grid.at(self.q_pos, self.k_pos, causal=self.causal)

    @property
    def visible(self) -> Bool[Tensor, "q k"]:
        seen = self.grid.visible()
        return torch.ones(len(self.q_pos), len(self.k_pos), dtype=torch.bool) if seen is None else seen

    @property
    def lag(self) -> Int[Tensor, "q k"]:
        return self.q_pos.unsqueeze(-1) - self.k_pos
