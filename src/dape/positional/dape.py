"""DAPE (Zheng et al., NeurIPS 2024): a positional bias that adapts to the content of a query and a key.

At every (i, j), across heads, with A the scaled scores and B the bias of any base encoding,
f(x) = W2 leaky(W1 x + b1) + b2   and

concat_residual   logits = A + B + f([A; B])        the default and the paper's main results
concat            logits = A + f([A; B])
add_residual      logits = A + B + f(A + B)
bias_only         logits = A + B + f(B)             the ablation: adaptive in position only
bias_map          logits = A + f(B)                 the same without B itself; static, so as fast as a bias
a base without bias (nope, rope, pi, yarn):   logits = A + f(A)

f reads scaled scores before masking. It reads one (i, j) at a time, so masking afterwards is exact.
"""

from abc import abstractmethod
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dape.modules import is_plain
from dape.positional.around import Around
from dape.positional.base import (
    LEAKY_SLOPE,
    AdditiveBias,
    AttentionDims,
    BiasSource,
    Mix,
    PositionalEncoding,
    ScoreForm,
    accurate,
    require_choice,
    require_count,
)
from dape.positional.grid import Grid
from dape.positional.layers import Affine, RowConvolution, across_heads
from dape.positional.row_forms import KeyConvolution

DEFAULT_HIDDEN = 32
Variant = Literal["concat_residual", "concat", "add_residual", "bias_only", "bias_map"]
WITHOUT_BIAS = ("concat", "bias_map")
_WITHOUT_SCORES = ("bias_only", "bias_map")


class HeadMixer(nn.Module):
    """f: a two-layer perceptron over the head axis, the same for every (i, j). Content heads come first."""

    def __init__(self, inputs: int, hidden: int, outputs: int, *, zero_init_out: bool = False) -> None:
        super().__init__()
        self.first = Affine(inputs, hidden)
        self.second = Affine(hidden, outputs)
        if zero_init_out:
            for parameter in self.second.parameters():
                nn.init.zeros_(parameter)

    def forward(self, *inputs: Float[Tensor, "..."]) -> Float[Tensor, "*b h q k"]:
        """f([x; y; ...])"""
        hidden = nn.functional.leaky_relu(across_heads(self.first, *inputs), LEAKY_SLOPE)
        return across_heads(self.second, hidden)

    def weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """W1, b1, W2 and b2; None if f computes anything else, for instance because of a hook."""
        if not (is_plain(self.first, Affine) and is_plain(self.second, Affine)):
            return None
        b1, b2 = self.first.bias, self.second.bias
        if b1 is None or b2 is None:
            return None
        return accurate(self.first.weight), accurate(b1), accurate(self.second.weight), accurate(b2)


class DapeWrapper(Around):
    """The base class of DAPE and DAPE-v2: keeps the hooks of its base encoding, and gives f its bias."""

    def __init__(self, dims: AttentionDims, base: PositionalEncoding) -> None:
        if not (isinstance(base, PositionalEncoding) and base.allows_dape()):
            raise TypeError(
                f"dape adapts an additive bias, rotary positions or nope; {type(base).__name__} is none of these. "
                "`dape list dape-` shows the possible bases"
            )
        super().__init__(dims, base)

    @property
    def has_bias(self) -> bool:
        return isinstance(self.base, AdditiveBias)

    def base_bias(self, grid: Grid) -> Float[Tensor, "*b h q k"] | None:
        return self.base.bias_on(grid) if isinstance(self.base, AdditiveBias) else None

    def bias(
        self, q_pos: Int[Tensor, "*b q"], k_pos: Int[Tensor, "*b k"], *, causal: bool = True
    ) -> Float[Tensor, "*b h q k"]:
        """B of the base, the static part that f adapts."""
        if not isinstance(self.base, AdditiveBias):
            raise TypeError(f"{type(self.base).__name__} has no additive bias; its DAPE is A + f(A)")
        return self.base.bias(q_pos, k_pos, causal=causal)

    @abstractmethod
    def mixed(self, scores: Float[Tensor, "*b h q k"], grid: Grid) -> Float[Tensor, "*b h q k"]:
        """The output of f alone."""

    def terms(
        self, scores: Float[Tensor, "*b h q k"], grid: Grid
    ) -> tuple[Float[Tensor, "*b h q k"] | None, Float[Tensor, "*b h q k"] | None]:
        return self.base_bias(grid), self.mixed(scores, grid)


class Dape(DapeWrapper):
    """DAPE on a base encoding: a small network f over the heads, at every pair of query and key. The equation is at the
    top of this module; ``dape.build("dape-kerple", ...)`` makes one."""

    def __init__(
        self,
        dims: AttentionDims,
        base: PositionalEncoding,
        *,
        hidden: int = DEFAULT_HIDDEN,
        variant: Variant = "concat_residual",
        zero_init_out: bool = False,
    ) -> None:
        super().__init__(dims, base)
        require_choice("variant", variant, Variant)
        require_count("hidden", hidden)
        if variant != "concat_residual" and not self.has_bias:
            raise ValueError(f"variant {variant!r} needs a bias, and {type(base).__name__} has none: leave it out")
        self.variant: Variant = variant
        inputs = 2 * dims.num_heads if self._concatenates else dims.num_heads
        self.f = HeadMixer(inputs, hidden, dims.num_heads, zero_init_out=zero_init_out)

    @property
    def _concatenates(self) -> bool:
        return self.has_bias and self.variant in ("concat_residual", "concat")

    @property
    def _keeps_bias(self) -> bool:
        return self.has_bias and self.variant not in WITHOUT_BIAS

    def mixed(self, scores: Float[Tensor, "*b h q k"], grid: Grid) -> Float[Tensor, "*b h q k"]:
        return self._f(scores, self.base_bias(grid))

    def logits(
        self, scores: Float[Tensor, "*b h q k"], q: Float[Tensor, "*b h q d"], k: Float[Tensor, "*b g k d"], grid: Grid
    ) -> Float[Tensor, "*b h q k"]:
        bias = self.base_bias(grid)
        out = scores + self._f(scores, bias)
        return out if bias is None or not self._keeps_bias else out + bias

    def _f(self, scores: Tensor, bias: Tensor | None) -> Tensor:
        if bias is None:
            return self.f(scores)
        bias = bias.to(scores.dtype)
        match self.variant:
            case "concat_residual" | "concat":
                return self.f(scores, bias)
            case "add_residual":
                return self.f(scores + bias)
            case "bias_only" | "bias_map":
                return self.f(bias)

    def score_form(self) -> ScoreForm | None:
        base = self.base.score_form()
        if base is None or base.mix is not None or type(self).logits is not Dape.logits:
            return None
        if self.variant in _WITHOUT_SCORES:
            return None if base.separable else ScoreForm(source=self._adapted_source())
        if (weights := self.f.weights() if is_plain(self.f, HeadMixer) else None) is None:
            return None
        w1, b1, w2, b2 = weights
        if not self.has_bias:
            wa, wb = w1, None
        else:
            wa, wb = w1.chunk(2, dim=1) if self._concatenates else (w1, w1)
        mix = Mix(wa=wa, wb=wb, b1=b1, w2=w2, b2=b2)
        return replace(base, adds_bias=self._keeps_bias, mix=mix)

    def adapted_bias_on(self, grid: Grid) -> Float[Tensor, "*b h q k"]:
        """B + f(B), or f(B) alone: an additive bias that does not depend on content."""
        bias = self.base_bias(grid)
        assert bias is not None
        return self._adapted(bias)

    def _adapted(self, bias: Tensor) -> Tensor:
        return bias + self.f(bias) if self._keeps_bias else self.f(bias)

    def _adapted_source(self) -> BiasSource:
        assert isinstance(self.base, AdditiveBias)
        source = self.base.source()

        def at(lag: Tensor, *, causal: bool) -> Tensor:
            assert source.at is not None
            bias = source.at(lag.reshape(1, -1), causal=causal)
            return self._adapted(bias).reshape(-1, *lag.shape)

        return BiasSource(module=self, on=Dape.adapted_bias_on, at=at if source.at else None)


class DapeV2(DapeWrapper):
    """DAPE-v2: f becomes two convolutions over 1 x ``kernel`` neighbouring keys of the same query.

    Scores of hidden keys are set to 0 before the first convolution. With ``mask_hidden``, hidden units of hidden keys
    are set to 0 too, so that a row does not depend on the number of keys after it, as caching requires. Without it, the
    computation is that of the authors' program.
    """

    def __init__(
        self,
        dims: AttentionDims,
        base: PositionalEncoding,
        *,
        hidden: int = DEFAULT_HIDDEN,
        kernel: int = 3,
        mask_hidden: bool = True,
    ) -> None:
        super().__init__(dims, base)
        require_count("hidden", hidden)
        if require_count("kernel", kernel) % 2 == 0:
            raise ValueError(f"the kernel of dape-v2 must be odd, so that it has a middle; got {kernel}")
        self.mask_hidden = mask_hidden
        self.reads_hidden_columns = not mask_hidden
        inputs = dims.num_heads * (2 if self.has_bias else 1)
        self.first = RowConvolution(inputs, hidden, kernel)
        self.second = RowConvolution(hidden, dims.num_heads, kernel)

    def mixed(self, scores: Float[Tensor, "*b h q k"], grid: Grid) -> Float[Tensor, "*b h q k"]:
        return self._f(scores, self.base_bias(grid), grid)

    def logits(
        self, scores: Float[Tensor, "*b h q k"], q: Float[Tensor, "*b h q d"], k: Float[Tensor, "*b g k d"], grid: Grid
    ) -> Float[Tensor, "*b h q k"]:
        bias = self.base_bias(grid)
        out = scores + self._f(scores, bias, grid)
        return out if bias is None else out + bias

    def _f(self, scores: Tensor, bias: Tensor | None, grid: Grid) -> Tensor:
        visible = grid.visible()
        shown = 1.0 if visible is None else visible.unsqueeze(-3).to(scores.dtype)
        x = scores if bias is None else torch.cat([scores, bias.to(scores.dtype).expand_as(scores)], dim=-3)
        hidden = nn.functional.leaky_relu(self._convolve(self.first, x * shown), LEAKY_SLOPE)
        return self._convolve(self.second, hidden * shown if self.mask_hidden else hidden)

    @staticmethod
    def _convolve(layer: nn.Module, x: Tensor) -> Tensor:
        return layer(x.flatten(0, -4)).unflatten(0, x.shape[:-3])

    def row_form(self) -> KeyConvolution | None:
        """None if B depends on more than the lag, or without ``mask_hidden``, where rows depend on hidden keys."""
        base, layers = self.base.score_form(), (self.first, self.second)
        bias = None if base is None or base.source is None else base.source.at
        known = base is not None and self.has_bias == (bias is not None) and type(self).logits is DapeV2.logits
        if not (known and self.mask_hidden and all(is_plain(layer, RowConvolution) for layer in layers)):
            return None
        (w1, b1), (w2, b2) = ((accurate(x.weight).squeeze(2), x.bias) for x in layers)
        assert b1 is not None and b2 is not None
        wa, wb = w1.chunk(2, dim=1) if self.has_bias else (w1, None)
        return KeyConvolution(bias=bias, wa=wa, wb=wb, b1=accurate(b1), w2=w2, b2=accurate(b2))
