"""The interface every positional encoding implements.

Position can enter a transformer in three places, so an encoding has three hooks. A fourth hook is for encodings that
read the layer's input. By default the hooks change nothing:

* ``embed(x, positions)``: add something to the token embeddings (sinusoidal, learned);
* ``rotate(q, k, grid)``: rotate queries and keys (rope, pi, yarn);
* ``logits(scores, q, k, grid)``: change the scaled scores before mask and softmax (every bias, cope, dape, ...);
* ``features(x)``: compute numbers of each token from the input of the attention layer (gates). They are cached beside
  the keys, and the grid holds them for ``rotate`` and ``logits``.

A model calls all of them and never asks for a name. :class:`PositionalEncoding` itself is NoPE.
A hook gets scores, q and k as documented below, a :class:`Grid` of positions, and keys in the order of their positions.
It must read one row at a time, keep no state, be deterministic, and depend only on its arguments and registered
parameters, because the memory-lean implementations call it on blocks of rows and again in the backward pass.
Most new encodings subclass :class:`RelativeBias` and write one method, ``bias_at(lag, causal=...)``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import index
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dape.modules import has_hooks, must_be_called
from dape.positional.grid import Grid
from dape.positional.row_forms import RowForm

__all__ = [
    "AdditiveBias",
    "AttentionDims",
    "BiasSource",
    "BidirectionalForm",
    "Grid",
    "Mix",
    "Pieces",
    "PositionalEncoding",
    "Ramp",
    "RelativeBias",
    "ScoreForm",
    "Separable",
    "accurate",
    "asymmetric_distance",
    "column",
    "project_",
    "require_choice",
    "require_count",
    "require_positive",
    "share_heads",
]
"""These names are for authors of encodings; the others are for the library."""
LEAKY_SLOPE = 0.01
BidirectionalForm = Literal["past_bonus", "symmetric", "tril"]


@dataclass(frozen=True, kw_only=True)
class AttentionDims:
    """The shape of the attention an encoding is built for."""

    num_heads: int
    head_dim: int
    train_length: int
    """Longest sequence in training; read by fire, pi, yarn and the randomised pool."""
    model_dim: int
    """Width of the token embeddings; read by encodings that use embeddings or features."""


class Pieces(NamedTuple):
    """A piecewise linear function of one number u for every head: ``slopes[p] * u + levels[p]`` where ``kinks[p - 1] <
    u <= kinks[p]``."""

    kinks: Float[Tensor, " w"]
    """Ascending."""
    slopes: Float[Tensor, "p h"]
    levels: Float[Tensor, "p h"]


@dataclass(frozen=True, kw_only=True)
class Ramp:
    """B as a piecewise linear function of one number per cell, the product of a number of its lag and one of its
    row."""

    at: Callable[..., Float[Tensor, "*s"]]
    """``at(lag, causal=...)``: the number of a lag."""
    on_rows: Callable[[Grid], Float[Tensor, "*b q"]]
    """The numbers of a grid's rows."""
    pieces: Callable[[], Pieces]
    kinks: int
    """The number of kinks."""


@dataclass(frozen=True, kw_only=True)
class BiasSource:
    """How B is computed."""

    module: nn.Module
    """Holds every parameter that B depends on."""
    on: Callable[[Any, Grid], Float[Tensor, "*b h q k"]]
    """``on(module, grid)``. The module is an argument because the backward pass calls it with a copy."""
    at: Callable[..., Float[Tensor, "h *s"]] | None = None
    """``at(lag, causal=...)`` if B depends on the lag alone, so that a table over lags replaces the matrix."""
    ramp: Ramp | None = None
    """If B is a piecewise linear function of a number of the lag times a number of the row."""


class Separable(NamedTuple):
    """A bias that is a number of the query plus a number of the key, ``rows[..., i] + keys[..., j]``, for every head.
    Both may depend on content: gates c_i - c_j are ``Separable(c, -c)``. The memory-lean implementations never hold
    the matrix."""

    rows: Float[Tensor, "#b h q"]
    keys: Float[Tensor, "#b h k"]

    def on_cells(self) -> Float[Tensor, "#b h q k"]:
        return self.rows.unsqueeze(-1) + self.keys.unsqueeze(-2)


@dataclass(frozen=True, kw_only=True)
class Mix:
    """f of DAPE, with the first layer split by its inputs: ``w2 . leaky(wa . A + wb . B + b1) + b2``."""

    wa: Float[Tensor, "D h"]
    wb: Float[Tensor, "D h"] | None
    b1: Float[Tensor, " D"]
    w2: Float[Tensor, "h D"]
    b2: Float[Tensor, " h"]


@dataclass(frozen=True, kw_only=True)
class ScoreForm:
    """Logits in closed form, ``A + B + f(A, B)``. B, its term in the sum, and f may each be absent.

    An operator that does not know the encoding can compute this form, with exact gradients, without holding a whole
    matrix. An encoding without such a form is called with whole rows instead.
    """

    source: BiasSource | None = None
    separable: Separable | Callable[[Grid], Separable] | None = None
    """Added to what ``source`` gives; B is their sum. A function if it depends on features."""
    adds_bias: bool = True
    mix: Mix | None = None

    @property
    def plain(self) -> bool:
        """The logits are the scores."""
        return self.source is None and self.separable is None and self.mix is None


class PositionalEncoding(nn.Module, ABC):
    """NoPE: nothing is added anywhere; under a causal mask the model can still count."""

    supports_bidirectional: bool = True
    reads_hidden_columns: bool = False
    """The logits of a row depend on the number of keys after its last visible one, so blocks of rows need all keys."""

    absolute: bool = False
    """``rotate`` depends on more than distances: shifting all positions changes the scores."""

    _precision: Tensor

    def __init__(self, dims: AttentionDims) -> None:
        super().__init__()
        self.dims = dims
        # .double() and .bfloat16() convert this buffer, so that an encoding without parameters knows the dtype too.
        self.register_buffer("_precision", torch.empty(0), persistent=False)

    @property
    def precision(self) -> torch.dtype:
        """The dtype of computations on positions: float64 after ``.double()``, else float32."""
        return accumulation_dtype(self._precision.dtype)

    def embed(self, x: Float[Tensor, "*b t m"], positions: Int[Tensor, "*#b t"]) -> Float[Tensor, "*b t m"]:
        return x

    def features(
        self,
        x: Float[Tensor, "b t m"],
        *,
        past: Float[Tensor, "b n"] | None = None,
        padding: Bool[Tensor, "b t"] | None = None,
    ) -> Float[Tensor, "b t n"] | None:
        """Numbers of every token for ``rotate`` and ``logits``, computed from the input of the attention layer, or
        None.

        ``past`` are the features of the token before the first one, so that sums along the text can continue.
        ``padding`` is True at padding.
        """
        return None

    @property
    def needs_features(self) -> bool:
        return type(self).features is not PositionalEncoding.features

    def rotate(
        self, q: Float[Tensor, "*b h q d"], k: Float[Tensor, "*b g k d"], grid: Grid
    ) -> tuple[Float[Tensor, "*b h q d"], Float[Tensor, "*b g k d"]]:
        return q, k

    @property
    def rotates_once(self) -> bool:
        """Whether a token's rotation depends on its own position alone, so that a cache may hold rotated keys."""
        return type(self).rotate is PositionalEncoding.rotate

    def logits(
        self, scores: Float[Tensor, "*b h q k"], q: Float[Tensor, "*b h q d"], k: Float[Tensor, "*b g k d"], grid: Grid
    ) -> Float[Tensor, "*b h q k"]:
        """The logits of scaled scores. The caller masks them afterwards. A visible cell's logit must not depend on
        hidden keys.

        Scores are in float32 or float64; q and k keep the dtype of the model, and k may have fewer heads
        (:func:`share_heads` repeats them). ``grid.visible()`` is True at visible cells, without head axis; None if all
        are visible.
        """
        return scores

    def terms(
        self, scores: Float[Tensor, "*b h q k"], grid: Grid
    ) -> tuple[Float[Tensor, "*b h q k"] | None, Float[Tensor, "*b h q k"] | None]:
        """B and f(A, B) as they are added to the logits, for plots and measurements; None for absent ones."""
        return None, None

    def score_form(self) -> ScoreForm | None:
        """The closed form of ``logits``, or None if it has none."""
        return ScoreForm() if type(self).logits is PositionalEncoding.logits else None

    def row_form(self) -> RowForm | None:
        """Another closed form that kernels know, if ``score_form`` is None; or None."""
        return None

    def sinks(self) -> Float[Tensor, " h"] | None:
        """The logit of each head's sink, a column without a value beside the keys; None without sinks."""
        return None

    def settle(self, grid: Grid) -> tuple["PositionalEncoding", Grid]:
        """The encoding and the grid to compute with. Called once at the start of an attention call."""
        return self, grid

    def project_(self) -> None:
        """Clamp constrained parameters to their range. Training calls this after every optimizer step."""
        for child in self.children():
            if isinstance(child, PositionalEncoding):
                child.project_()

    @classmethod
    def allows_dape(cls) -> bool:
        """Whether DAPE may wrap this encoding: it adds a bias, or changes neither logits nor embeddings."""
        kept = (PositionalEncoding.logits, AdditiveBias.logits)
        return cls.embed is PositionalEncoding.embed and cls.logits in kept

    @classmethod
    def defaults_inside_dape(cls, hidden: int) -> dict[str, Any]:
        """Options that differ when this encoding is the base of a DAPE of the given hidden width."""
        return {}


class AdditiveBias(PositionalEncoding):
    """Logits = scores + B, where B depends on positions, possibly on features, but not on queries and keys. Subclasses
    implement ``bias_on``."""

    @abstractmethod
    def bias_on(self, grid: Grid) -> Float[Tensor, "*b h q k"]:
        """B on every cell of the grid, in float32 or better."""

    def bias(
        self, q_pos: Int[Tensor, "*b q"], k_pos: Int[Tensor, "*b k"], *, causal: bool = True
    ) -> Float[Tensor, "*b h q k"]:
        """B for queries and keys at the given positions; the values at cells that a causal mask hides are arbitrary."""
        require_features(self, given=False)
        return self.bias_on(Grid.at(q_pos, k_pos, causal=causal))

    def logits(
        self, scores: Float[Tensor, "*b h q k"], q: Float[Tensor, "*b h q d"], k: Float[Tensor, "*b g k d"], grid: Grid
    ) -> Float[Tensor, "*b h q k"]:
        return scores + self.bias_on(grid)

    def terms(
        self, scores: Float[Tensor, "*b h q k"], grid: Grid
    ) -> tuple[Float[Tensor, "*b h q k"] | None, Float[Tensor, "*b h q k"] | None]:
        return self.bias_on(grid), None

    def source(self) -> BiasSource:
        return BiasSource(module=self, on=type(self).bias_on)

    def score_form(self) -> ScoreForm | None:
        """None if B depends on features; an encoding whose B is separable overrides this."""
        known = type(self).logits is AdditiveBias.logits and not self.needs_features
        return ScoreForm(source=self.source()) if known else None


class RelativeBias(AdditiveBias):
    """An additive bias that depends on the lag i - j alone. Subclasses implement ``bias_at``."""

    @abstractmethod
    def bias_at(self, lag: Int[Tensor, "*s"], *, causal: bool) -> Float[Tensor, "h *s"]:
        """B at each lag, heads first. If ``causal``, negative lags are hidden, and their values must only be finite."""

    def bias_on(self, grid: Grid) -> Float[Tensor, "*b h q k"]:
        return self.bias_at(grid.lag(), causal=grid.causal).movedim(0, -3)

    def source(self) -> BiasSource:
        by_lag = type(self).bias_on is RelativeBias.bias_on
        return replace(super().source(), at=self.bias_at if by_lag else None)


def closed_form(pe: PositionalEncoding) -> ScoreForm | None:
    """``pe.score_form()``, or None if a layer of the encoding has a hook, another ``forward`` or dropout: those need
    the layer to be called once per forward pass, and operators read its weights instead."""
    return pe.score_form() if _may_be_read(pe) else None


def any_form(pe: PositionalEncoding) -> ScoreForm | RowForm | None:
    """``pe.score_form()`` or ``pe.row_form()``, under the same condition."""
    return (pe.score_form() or pe.row_form()) if _may_be_read(pe) else None


def _may_be_read(pe: PositionalEncoding) -> bool:
    for module in pe.modules():
        random = isinstance(module, nn.Dropout) and module.training and module.p > 0
        if random or (must_be_called(module) and not isinstance(module, PositionalEncoding)):
            return False
    return True


def check_intact(pe: PositionalEncoding) -> None:
    """Raise an error for hooks and wrappers on an encoding, which would never run. An encoding around another one keeps
    it as ``base``."""
    for name, module in pe.named_modules():
        if not isinstance(module, PositionalEncoding):
            continue
        what = f"{type(pe).__name__}.{name}" if name else type(pe).__name__
        if has_hooks(module):
            raise ValueError(
                f"{what} has forward or backward hooks, and they never run: an encoding is not called, its parameters "
                "are read. Pruning: torch.nn.utils.prune.remove makes it permanent; a rule for weights that stays: "
                "torch.nn.utils.parametrize; to watch or to change: hook a layer inside, such as f.first, or the "
                "attention layer around the encoding"
            )
        base = module._modules.get("base")
        if base is not None:
            require_encoding(base, f"{what}.base")


def require_encoding(module: object, what: str) -> PositionalEncoding:
    """``module`` if it is an encoding. Raises TypeError with the type of what was found instead."""
    if not isinstance(module, PositionalEncoding):
        raise TypeError(
            f"{what} must be a positional encoding, as dape.build(name, ...) gives; got {type(module).__name__}. A "
            "wrapper around an encoding would never be called: put it around a layer inside, such as f.first, or train "
            "the encoding's own parameters"
        )
    return module


def require_features(pe: PositionalEncoding, *, given: bool) -> None:
    """Raise ValueError if an encoding that reads features was given none, or any other encoding was given some."""
    if pe.needs_features and not given:
        raise ValueError(
            f"{_named(pe)} reads features of every token, and none were given. Pass features=pe.features(x) to "
            "dape.attention, x being what enters the attention layer ([batch, tokens, model_dim]); dape.DecoderLM and "
            "dape.nn.SelfAttention do so by themselves"
        )
    if given and not pe.needs_features:
        raise ValueError(f"features were given, but {_named(pe)} reads none: leave them out")


def _named(pe: PositionalEncoding) -> str:
    """The class name of the innermost encoding."""
    base = pe._modules.get("base")
    return _named(base) if isinstance(base, PositionalEncoding) else type(pe).__name__


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of computations on positions, of f and of the softmax: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def accurate(x: Tensor) -> Tensor:
    """``x`` in float32 or float64, because half precision would round positions (bfloat16 is exact only up to 256)."""
    return x.to(accumulation_dtype(x.dtype))


def column(x: Float[Tensor, " h"], like: Tensor) -> Float[Tensor, "h *ones"]:
    """One value per head, in float32 or float64, with an axis of size 1 for each axis of ``like``."""
    return accurate(x).view(-1, *(1,) * like.dim())


def asymmetric_distance(
    lag: Int[Tensor, "*s"], *, causal: bool, form: BidirectionalForm, dtype: torch.dtype
) -> Float[Tensor, "*s"]:
    """The distance of a key as a bias reads it.

    Causal: the lag, and 0 for hidden keys. Bidirectional: with ``past_bonus``, |lag|, less half a step for past keys,
    which breaks the symmetry between left and right (DeepMind's ALiBi); with ``symmetric``, |lag|; with ``tril``, as
    causal.
    """
    lag = lag.long()  # in a narrower type, the negative of the smallest number overflows
    if causal or form == "tril":
        return lag.clamp(min=0).to(dtype)
    distance = lag.abs().to(dtype)
    if form == "past_bonus":
        distance = distance - 0.5 * (lag > 0)
    return distance


def share_heads(x: Float[Tensor, "*b g k d"], num_heads: int) -> Float[Tensor, "*b h k d"]:
    """Key or value heads repeated for the query heads that share them."""
    groups = num_heads // x.shape[-3]
    return x if groups == 1 else x.repeat_interleave(groups, dim=-3)


def require_count(what: str, value: Any) -> int:
    """``value`` as an int. Raises ValueError if it is not a whole number of at least 1."""
    try:
        count = index(value)
    except TypeError:
        count = 0
    if count < 1 or isinstance(value, bool):
        raise ValueError(f"{what} must be a positive whole number, got {value!r}")
    return count


def require_positive(what: str, value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{what} must be a positive number, got {value!r}")
    return value


def require_choice(what: str, value: Any, choices: Any) -> Any:
    """``value`` if it is in ``choices``, a ``Literal``. Raises ValueError otherwise."""
    if value not in get_args(choices):
        raise ValueError(f"{what}={value!r} is not possible; choose one of {', '.join(map(repr, get_args(choices)))}")
    return value


def encodings_in(module: nn.Module) -> list[PositionalEncoding]:
    """All encodings in a module, including those inside other encodings."""
    return [part for part in module.modules() if isinstance(part, PositionalEncoding)]


def project_(module: nn.Module) -> None:
    """Clamp constrained parameters of all encodings in a module to their range. Call it after every optimizer step."""
    for pe in encodings_in(module):
        pe.project_()
