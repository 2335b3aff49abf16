"""The interface every positional encoding implements.

Position can enter a transformer in three places, so an encoding has three hooks, all identity by default, and a
fourth for those that read content of their own:

* ``embed(x, positions)``: add something to the token embeddings (sinusoidal, learned);
* ``rotate(q, k, grid)``: turn queries and keys (rope, pi, yarn);
* ``logits(scores, q, k, grid)``: change the scaled scores before mask and softmax (every bias, cope, dape, ...);
* ``features(x)``: numbers of each token, made of what enters the attention layer (gates). They are cached beside the
  keys, and ``rotate`` and ``logits`` find them in the grid.

A model calls all of them unconditionally and never asks for a name. :class:`PositionalEncoding` itself is NoPE.
A hook gets scores, q and k as documented below, a :class:`Grid` of positions, and keys in the order of their positions.
It must look along a row only, remember nothing, be deterministic, and depend on its arguments and registered parameters
alone, since the memory-lean implementations call it on blocks of rows and again in the backward pass.
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
    """Longest sequence seen in training; read by fire, pi, yarn and the randomised pool."""
    model_dim: int
    """Width of the token embeddings; read by the encodings that act there."""


class Pieces(NamedTuple):
    """A piecewise linear function of one number for every head: ``slopes[p] * u + levels[p]`` for u above
    ``kinks[p - 1]`` and up to ``kinks[p]``."""

    kinks: Float[Tensor, " w"]
    """Ascending."""
    slopes: Float[Tensor, "p h"]
    levels: Float[Tensor, "p h"]


@dataclass(frozen=True, kw_only=True)
class Ramp:
    """B as a piecewise linear function of one number per cell, a product of one of its lag and one of its row."""

    at: Callable[..., Float[Tensor, "*s"]]
    """``at(lag, causal=...)``: the number of a lag."""
    on_rows: Callable[[Grid], Float[Tensor, "*b q"]]
    """The numbers of a grid's rows."""
    pieces: Callable[[], Pieces]
    kinks: int
    """How many."""


@dataclass(frozen=True, kw_only=True)
class BiasSource:
    """Where B comes from."""

    module: nn.Module
    """Holds every parameter that B depends on."""
    on: Callable[[Any, Grid], Float[Tensor, "*b h q k"]]
    """``on(module, grid)``; the module is an argument because the backward pass evaluates a copy of it."""
    at: Callable[..., Float[Tensor, "h *s"]] | None = None
    """``at(lag, causal=...)`` if B depends on the lag alone, so that a table over lags replaces the matrix."""
    ramp: Ramp | None = None
    """If B depends on the row too, but only by a factor of what its pieces read."""


class Separable(NamedTuple):
    """A bias that is a number of the query plus one of the key, ``rows[..., i] + keys[..., j]``, for every head.
    Content may enter both: gates c_i - c_j are ``Separable(c, -c)``. Never a matrix in the memory-lean
    implementations."""

    rows: Float[Tensor, "#b h q"]
    keys: Float[Tensor, "#b h k"]

    def on_cells(self) -> Float[Tensor, "#b h q k"]:
        return self.rows.unsqueeze(-1) + self.keys.unsqueeze(-2)


@dataclass(frozen=True, kw_only=True)
class Mix:
    """f of DAPE, its first layer split by what it reads: ``w2 . leaky(wa . A + wb . B + b1) + b2``."""

    wa: Float[Tensor, "D h"]
    wb: Float[Tensor, "D h"] | None
    b1: Float[Tensor, " D"]
    w2: Float[Tensor, "h D"]
    b2: Float[Tensor, " h"]


@dataclass(frozen=True, kw_only=True)
class ScoreForm:
    """Logits in closed form, ``A + B + f(A, B)``, where B, its place in the sum, and f may each be absent.

    An operator that knows nothing about encodings can compute this without ever holding a whole matrix, and return
    exact gradients; whatever cannot be written so gets whole rows instead.
    """

    source: BiasSource | None = None
    separable: Separable | Callable[[Grid], Separable] | None = None
    """Part of B, beside what comes from ``source``: both wherever B stands. A function if it is made of features."""
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
    """A row's logits change with the number of keys beyond its last visible one, so blocks must keep all keys."""

    absolute: bool = False
    """``rotate`` is not undone by shifting all positions: it reads more than distances."""

    _precision: Tensor

    def __init__(self, dims: AttentionDims) -> None:
        super().__init__()
        self.dims = dims
        # Follows .double()/.bfloat16() like a parameter would, so that parameter-free encodings know the wanted dtype.
        self.register_buffer("_precision", torch.empty(0), persistent=False)

    @property
    def precision(self) -> torch.dtype:
        """The dtype positions are evaluated in: float64 after ``.double()``, else float32."""
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
        """Numbers of every token that ``rotate`` and ``logits`` read, or None; made of what enters the attention layer.

        ``past`` are those of the token before the first one, if there is one: sums along the text go on from them.
        ``padding`` is True at tokens that are none.
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
        self,
        scores: Float[Tensor, "*b h q k"],
        q: Float[Tensor, "*b h q d"],
        k: Float[Tensor, "*b g k d"],
        grid: Grid,
    ) -> Float[Tensor, "*b h q k"]:
        """Scaled scores in, logits out. The caller masks afterwards; a hook must not let hidden keys leak.

        Scores are in float32 or better; q and k keep the dtype of the model, and k may have fewer heads
        (:func:`share_heads` repeats them). ``grid.visible()`` says which cells count: no head axis, None for all.
        """
        return scores

    def terms(
        self, scores: Float[Tensor, "*b h q k"], grid: Grid
    ) -> tuple[Float[Tensor, "*b h q k"] | None, Float[Tensor, "*b h q k"] | None]:
        """B and f(A, B) as they enter the logits, None for what the encoding does not have: for looking at them."""
        return None, None

    def score_form(self) -> ScoreForm | None:
        """The closed form of ``logits``, or None if it has none."""
        return ScoreForm() if type(self).logits is PositionalEncoding.logits else None

    def row_form(self) -> RowForm | None:
        """Where there is no such form: another one that kernels know, or None."""
        return None

    def sinks(self) -> Float[Tensor, " h"] | None:
        """Logits of a column that every head has beside its keys, without value; None if there is none."""
        return None

    def settle(self, grid: Grid) -> tuple["PositionalEncoding", Grid]:
        """Called once at the start of an attention call: the encoding and the grid to compute with."""
        return self, grid

    def project_(self) -> None:
        """Put constrained parameters back into their range; training calls this after every optimizer step."""
        for child in self.children():
            if isinstance(child, PositionalEncoding):
                child.project_()

    @classmethod
    def allows_dape(cls) -> bool:
        """Whether DAPE may be put on top: on encodings that add a bias or leave logits and embeddings alone."""
        kept = (PositionalEncoding.logits, AdditiveBias.logits)
        return cls.embed is PositionalEncoding.embed and cls.logits in kept

    @classmethod
    def defaults_inside_dape(cls, hidden: int) -> dict[str, Any]:
        """Options that differ when this encoding is the base of a DAPE of the given hidden width."""
        return {}


class AdditiveBias(PositionalEncoding):
    """Logits = scores + B, where B depends on positions and perhaps features, but never on queries and keys. Implement
    ``bias_on``."""

    @abstractmethod
    def bias_on(self, grid: Grid) -> Float[Tensor, "*b h q k"]:
        """B on every cell of the grid, in float32 or better."""

    def bias(
        self, q_pos: Int[Tensor, "*b q"], k_pos: Int[Tensor, "*b k"], *, causal: bool = True
    ) -> Float[Tensor, "*b h q k"]:
        """B for queries and keys at the given positions; hidden cells of a causal bias hold no meaning."""
        require_features(self, given=False)
        return self.bias_on(Grid.at(q_pos, k_pos, causal=causal))

    def logits(
        self,
        scores: Float[Tensor, "*b h q k"],
        q: Float[Tensor, "*b h q d"],
        k: Float[Tensor, "*b g k d"],
        grid: Grid,
    ) -> Float[Tensor, "*b h q k"]:
        return scores + self.bias_on(grid)

    def terms(
        self, scores: Float[Tensor, "*b h q k"], grid: Grid
    ) -> tuple[Float[Tensor, "*b h q k"] | None, Float[Tensor, "*b h q k"] | None]:
        return self.bias_on(grid), None

    def source(self) -> BiasSource:
        return BiasSource(module=self, on=type(self).bias_on)

    def score_form(self) -> ScoreForm | None:
        """None for a B of features, which has whole rows unless it is separable and says so here."""
        known = type(self).logits is AdditiveBias.logits and not self.needs_features
        return ScoreForm(source=self.source()) if known else None


class RelativeBias(AdditiveBias):
    """An additive bias that depends on the lag i - j alone. Implement ``bias_at``."""

    @abstractmethod
    def bias_at(self, lag: Int[Tensor, "*s"], *, causal: bool) -> Float[Tensor, "h *s"]:
        """B at each lag, heads first. In the causal form negative lags are hidden; any finite value will do."""

    def bias_on(self, grid: Grid) -> Float[Tensor, "*b h q k"]:
        return self.bias_at(grid.lag(), causal=grid.causal).movedim(0, -3)

    def source(self) -> BiasSource:
        by_lag = type(self).bias_on is RelativeBias.bias_on
        return replace(super().source(), at=self.bias_at if by_lag else None)


def closed_form(pe: PositionalEncoding) -> ScoreForm | None:
    """``pe.score_form()`` for an operator that evaluates it as often and as rarely as it likes: None where somebody put
    a hook, a ``forward`` of their own or dropout into the encoding, which expect the layers to be called."""
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
    """Refuse what was put on an encoding and cannot act there. An encoding around another keeps it as ``base``."""
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
    """``module`` itself, or an error that names what stands in its place."""
    if not isinstance(module, PositionalEncoding):
        raise TypeError(
            f"{what} must be a positional encoding, as dape.build(name, ...) gives; got {type(module).__name__}. A "
            "wrapper around an encoding would never be called: put it around a layer inside, such as f.first, or train "
            "the encoding's own parameters"
        )
    return module


def require_features(pe: PositionalEncoding, *, given: bool) -> None:
    """An encoding that reads features has to be given them, and no other can use any."""
    if pe.needs_features and not given:
        raise ValueError(
            f"{_named(pe)} reads features of every token, and none were given. Pass features=pe.features(x) to "
            "dape.attention, x being what enters the attention layer ([batch, tokens, model_dim]); dape.DecoderLM and "
            "dape.nn.SelfAttention do so by themselves"
        )
    if given and not pe.needs_features:
        raise ValueError(f"features were given, but {_named(pe)} reads none: leave them out")


def _named(pe: PositionalEncoding) -> str:
    """The innermost encoding, which the others are put around."""
    base = pe._modules.get("base")
    return _named(base) if isinstance(base, PositionalEncoding) else type(pe).__name__


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Positions, f and softmax are computed in float32, or in float64 when the input already is."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def accurate(x: Tensor) -> Tensor:
    """``x`` in at least float32: half-precision parameters must not round positions (bf16 is exact only to 256)."""
    return x.to(accumulation_dtype(x.dtype))


def column(x: Float[Tensor, " h"], like: Tensor) -> Float[Tensor, "h *ones"]:
    """One accurate value per head, ready to broadcast against ``like`` of any shape, heads in front."""
    return accurate(x).view(-1, *(1,) * like.dim())


def asymmetric_distance(
    lag: Int[Tensor, "*s"], *, causal: bool, form: BidirectionalForm, dtype: torch.dtype
) -> Float[Tensor, "*s"]:
    """How far away a key counts as being.

    Causal: the lag, and 0 for hidden keys. Bidirectional ``past_bonus``: past keys are half a step nearer, which breaks
    the symmetry between left and right (DeepMind's ALiBi); ``symmetric``: the plain distance; ``tril``: as causal.
    """
    lag = lag.long()  # the largest distance of a narrower type has no negative
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
    """``value`` as an int of at least 1, or an error that names it."""
    try:
        count = index(value)
    except TypeError:
        count = 0
    if count < 1 or isinstance(value, bool):
        raise ValueError(f"{what} must be a positive whole number, got {value!r}")
    return count


def require_positive(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{what} must be a positive number, got {value!r}")
    return value


def require_choice(what: str, value: Any, choices: Any) -> Any:
    """``choices`` is the ``Literal`` the value must be one of."""
    if value not in get_args(choices):
        raise ValueError(f"{what}={value!r} is not possible; choose one of {', '.join(map(repr, get_args(choices)))}")
    return value


def encodings_in(module: nn.Module) -> list[PositionalEncoding]:
    """All encodings inside, those inside others included."""
    return [part for part in module.modules() if isinstance(part, PositionalEncoding)]


def project_(module: nn.Module) -> None:
    """Put constrained parameters of all encodings inside back into their range; call after every optimizer step."""
    for pe in encodings_in(module):
        pe.project_()
