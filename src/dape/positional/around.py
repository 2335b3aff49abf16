"""The base class of encodings around another encoding: every hook calls the hook of the base unless overridden."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from dape.positional.base import AttentionDims, PositionalEncoding, ScoreForm
from dape.positional.grid import Grid
from dape.positional.row_forms import RowForm


class Around(PositionalEncoding):
    def __init__(self, dims: AttentionDims, base: PositionalEncoding) -> None:
        super().__init__(dims)
        self.base = base
        self.supports_bidirectional = base.supports_bidirectional
        self.reads_hidden_columns, self.absolute = base.reads_hidden_columns, self.absolute or base.absolute

    def embed(self, x: Float[Tensor, "*b t m"], positions: Int[Tensor, "*#b t"]) -> Float[Tensor, "*b t m"]:
        return self.base.embed(x, positions)

    def features(
        self,
        x: Float[Tensor, "b t m"],
        *,
        past: Float[Tensor, "b n"] | None = None,
        padding: Bool[Tensor, "b t"] | None = None,
    ) -> Float[Tensor, "b t n"] | None:
        return self.base.features(x, past=past, padding=padding)

    @property
    def needs_features(self) -> bool:
        return self.base.needs_features

    def rotate(
        self, q: Float[Tensor, "*b h q d"], k: Float[Tensor, "*b g k d"], grid: Grid
    ) -> tuple[Float[Tensor, "*b h q d"], Float[Tensor, "*b g k d"]]:
        return self.base.rotate(q, k, grid)

    @property
    def rotates_once(self) -> bool:
        return self.base.rotates_once

    def logits(
        self, scores: Float[Tensor, "*b h q k"], q: Float[Tensor, "*b h q d"], k: Float[Tensor, "*b g k d"], grid: Grid
    ) -> Float[Tensor, "*b h q k"]:
        return self.base.logits(scores, q, k, grid)

    def bias(
        self, q_pos: Int[Tensor, "*b q"], k_pos: Int[Tensor, "*b k"], *, causal: bool = True
    ) -> Float[Tensor, "*b h q k"]:
        """B of the base, if it has one."""
        of_base = getattr(self.base, "bias", None)
        if of_base is None:
            raise TypeError(f"{type(self.base).__name__} has no additive bias")
        return of_base(q_pos, k_pos, causal=causal)

    def sinks(self) -> Float[Tensor, " h"] | None:
        return self.base.sinks()

    def terms(
        self, scores: Float[Tensor, "*b h q k"], grid: Grid
    ) -> tuple[Float[Tensor, "*b h q k"] | None, Float[Tensor, "*b h q k"] | None]:
        return self.base.terms(scores, grid)

    def score_form(self) -> ScoreForm | None:
        return self.base.score_form() if type(self).logits is Around.logits else None

    def row_form(self) -> RowForm | None:
        return self.base.row_form() if type(self).logits is Around.logits else None
