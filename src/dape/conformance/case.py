"""One conformance vector: the inputs of a small attention call, its parameters, and what must come out.

Shapes have no batch axis. ``rows`` are the query positions whose logits are compared; where there is content, they are
also the rows of ``q``, because its queries and keys are the tokens 0, 1, 2, ... of one sequence.

The gradients are those of ``loss = sum(weight * softmax(logits))``, the softmax over visible keys; for an encoding of
the embeddings those of ``sum(weight * embedded)``. Through the softmax an attention function can be compared, too.
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
    """Of the encoding, as for ``dape.build``."""
    causal: bool
    q_pos: Int[Tensor, " q"]
    k_pos: Int[Tensor, " k"]
    parameters: Mapping[str, Float[Tensor, "..."]]
    """By their names in the state dict of the reference."""
    q: Float[Tensor, "h t d"] | None = None
    """None where only positions are given: the scores are 0 and the logits are the bias."""
    k: Float[Tensor, "h t d"] | None = None
    x: Float[Tensor, "t m"] | None = None
    """Embeddings of the tokens at ``q_pos``, for encodings that act there."""
    entering: Float[Tensor, "t m"] | None = None
    """What enters the attention layer at 0, 1, 2, ..., for encodings that read features."""
    weight: Float[Tensor, "..."] | None = None
    """Of the loss; None if no gradients are compared."""
    expected: Float[Tensor, "..."] = field(default_factory=lambda: torch.empty(0))
    """Logits ``[h, q, k]``, or embeddings ``[t, m]`` where ``x`` is given. Hidden cells hold 0."""
    gradients: Mapping[str, Float[Tensor, "..."]] = field(default_factory=dict)
    """Of q, k, x, entering and of parameters by name."""

    @property
    def length(self) -> int:
        """Of the sequence: the largest position and one more."""
        return int(max(self.q_pos.max(), self.k_pos.max())) + 1

    @property
    def stretch(self) -> float:
        """How many times longer than in training."""
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
