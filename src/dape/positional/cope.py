"""CoPE (Golovneva et al., 2024): the position of a key is a count of gates that depend on content.

gate g_ij = sigmoid(A_ij) for visible keys, else 0;   p_ij = min( sum_{t=j..i} g_it, npos - 1 );
with z_i = q_i E, E a (d, npos) table shared by the heads:   logit = A_ij + z_i interpolated at p_ij.

Gates read scaled scores; q E is not divided by sqrt(d). Causal only: counting starts at the query and goes back.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dape.positional.base import AttentionDims, PositionalEncoding, accurate, require_count
from dape.positional.grid import Grid
from dape.positional.row_forms import ContentCount


class Cope(PositionalEncoding):
    supports_bidirectional = False

    def __init__(self, dims: AttentionDims, *, npos: int = 64) -> None:
        super().__init__(dims)
        if require_count("npos", npos) < 2:
            raise ValueError(f"cope interpolates between at least two positions, got npos={npos}")
        self.table = nn.Parameter(torch.zeros(dims.head_dim, npos))

    def count(self, scores: Float[Tensor, "*b h q k"], grid: Grid) -> Float[Tensor, "*b h q k"]:
        """p_ij: the sum of the gates from key j to the query, both included."""
        gates = scores.sigmoid()
        visible = grid.visible()
        if visible is not None:
            gates = gates * visible.unsqueeze(-3)
        return gates.flip(-1).cumsum(-1).flip(-1).clamp(max=self.table.shape[1] - 1)

    def logits(
        self, scores: Float[Tensor, "*b h q k"], q: Float[Tensor, "*b h q d"], k: Float[Tensor, "*b g k d"], grid: Grid
    ) -> Float[Tensor, "*b h q k"]:
        position = self.count(scores, grid)
        low = position.floor()
        weight = position - low
        z = q.to(scores.dtype) @ accurate(self.table).to(scores.dtype)
        # Non-finite scores must give non-finite logits, and not an index outside of the table.
        below, above = (z.gather(-1, p.nan_to_num().long()) for p in (low, position.ceil()))
        return scores + weight * above + (1 - weight) * below

    def row_form(self) -> ContentCount | None:
        own = type(self).logits is Cope.logits and type(self).count is Cope.count
        return ContentCount(table=accurate(self.table)) if own else None
