"""Forgetting Transformer (Lin et al., ICLR 2025), an ALiBi whose slopes depend on content through forget gates.

f_t = sigmoid(w x_t + b) for every head, x_t the input of the attention layer;   c_t = log f_1 + ... + log f_t,
b(i, j) = c_i - c_j = log f_{j+1} + ... + log f_i.

The authors have three gates. ``full`` is the gate above. ``bias`` is f = sigmoid(b), learned, without content.
``fixed`` is the same, not learned. The last two are ALiBi with other slopes, (i - j) log f. Over the heads, the initial
decay times T = -1 / log f go from ``shortest`` to ``longest`` tokens, evenly in the logarithm. Causal only: there is no
gate for future tokens.
"""

import math
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dape.modules import without_autocast
from dape.positional.angles import exact_dtype
from dape.positional.base import (
    AdditiveBias,
    AttentionDims,
    BiasSource,
    ScoreForm,
    Separable,
    accurate,
    column,
    require_choice,
    require_features,
    require_positive,
)
from dape.positional.grid import Grid
from dape.positional.layers import Affine

Gate = Literal["full", "bias", "fixed"]
STD = 0.02
"""Standard deviation of the initial w, as in the authors' program; the initial b is 0."""


class Fox(AdditiveBias):
    supports_bidirectional = False

    def __init__(
        self, dims: AttentionDims, *, gate: Gate = "full", shortest: float = 2.0, longest: float = 128.0
    ) -> None:
        super().__init__(dims)
        self.gate: Gate = require_choice("gate", gate, Gate)
        self.shortest, self.longest = require_positive("shortest", shortest), require_positive("longest", longest)
        if longest < shortest:
            raise ValueError(f"longest={longest:g} is below shortest={shortest:g}: decay times grow over the heads")
        if gate == "full":
            self.w = Affine(dims.model_dim, dims.num_heads)
            nn.init.normal_(self.w.weight, std=STD)
            nn.init.zeros_(self.w.bias)  # pyright: ignore[reportArgumentType]
        elif gate == "bias":
            self.b = nn.Parameter(-(1 / self._decay_times(torch.get_default_device())).expm1().log().float())

    @property
    def needs_features(self) -> bool:
        return self.gate == "full"

    def features(
        self,
        x: Float[Tensor, "b t m"],
        *,
        past: Float[Tensor, "b h"] | None = None,
        padding: Bool[Tensor, "b t"] | None = None,
    ) -> Float[Tensor, "b t h"] | None:
        """c of every token. In float64, because c grows with the text, and only its differences enter the logits."""
        if self.gate != "full":
            return None
        with without_autocast(x.device):
            log_f = nn.functional.logsigmoid(self.w(accurate(x)))
            if padding is not None:
                log_f = log_f.masked_fill(padding.unsqueeze(-1), 0.0)
            c = log_f.to(exact_dtype(x.device)).cumsum(1)
        return c if past is None else c + past.unsqueeze(1)

    def separable(self, grid: Grid) -> Separable:
        require_features(self, given=grid.k_features is not None)
        assert grid.q_features is not None and grid.k_features is not None
        return Separable(grid.q_features.transpose(-1, -2), -grid.k_features.transpose(-1, -2))

    def bias_on(self, grid: Grid) -> Float[Tensor, "*b h q k"]:
        if self.gate == "full":
            return self.separable(grid).on_cells().to(self.precision)
        return self.bias_at(grid.lag(), causal=True).movedim(0, -3)

    def bias_at(self, lag: Int[Tensor, "*s"], *, causal: bool) -> Float[Tensor, "h *s"]:
        """B of the gates without content."""
        log_f = (
            nn.functional.logsigmoid(accurate(self.b)) if self.gate == "bias" else -1 / self._decay_times(lag.device)
        )
        return column(log_f.to(self.precision), lag) * lag.long().clamp(min=0)

    def _decay_times(self, device: torch.device) -> Float[Tensor, " h"]:
        steps = (math.log(self.shortest), math.log(self.longest), self.dims.num_heads)
        return torch.linspace(*steps, dtype=exact_dtype(device), device=device).exp()

    def source(self) -> BiasSource:
        return replace(super().source(), at=self.bias_at)

    def score_form(self) -> ScoreForm | None:
        if type(self).logits is not AdditiveBias.logits:
            return None
        return ScoreForm(separable=self.separable) if self.gate == "full" else super().score_form()
