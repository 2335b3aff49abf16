"""Mistakes of encodings that read content: DAPE, DAPE-v2, CoPE, Transformer-XL."""

import math

import torch
from torch import Tensor, nn

from dape.conformance.mistakes.base import Family, Mistake, Setting
from dape.positional.base import LEAKY_SLOPE
from dape.positional.cope import Cope
from dape.positional.dape import Dape, DapeV2
from dape.positional.layers import across_heads
from dape.positional.sinusoidal import sinusoid
from dape.positional.transformer_xl import TransformerXL

mistake = MISTAKES = Family()


# DAPE ----------------------------------------------------------------------------------------------------------------


def _bias(s: Setting) -> Tensor | None:
    assert isinstance(s.pe, Dape | DapeV2)
    bias = s.pe.base_bias(s.grid)
    return None if bias is None else bias.expand_as(s.scores)


def _f(s: Setting, *inputs: Tensor, activation=None) -> Tensor:
    assert isinstance(s.pe, Dape)
    hidden = across_heads(s.pe.f.first, *inputs)
    hidden = nn.functional.leaky_relu(hidden, LEAKY_SLOPE) if activation is None else activation(hidden)
    return across_heads(s.pe.f.second, hidden)


def _read(s: Setting) -> list[Tensor]:
    bias = _bias(s)
    return [s.scores] if bias is None else [s.scores, bias]


def _added(s: Setting, f: Tensor | float = 0.0) -> Tensor:
    """A + B + f."""
    return (sum(_read(s), torch.zeros_like(s.scores)) + f).squeeze(0)


@mistake("dape-", says="bias first: f reads [B; A], and should read [A; B]")
def bias_first(s: Setting) -> Tensor | None:
    bias = _bias(s)
    return None if bias is None else (s.scores + bias + _f(s, bias, s.scores)).squeeze(0)


@mistake("dape-", says="the residual is missing: A + f([A; B]), without B itself (that is the variant `concat`)")
def without_residual(s: Setting) -> Tensor | None:
    bias = _bias(s)
    return None if bias is None else (s.scores + _f(s, s.scores, bias)).squeeze(0)


@mistake("dape-", says="f alone is the logits: A and B are not added to it")
def f_alone(s: Setting) -> Tensor:
    return _f(s, *_read(s)).squeeze(0)


@mistake("dape-", "dape-v2-", says="f is missing: this is the base encoding")
def without_f(s: Setting) -> Tensor:
    return _added(s)


@mistake("dape-", says="f reads scores that are not divided by sqrt(d)")
def f_reads_unscaled_scores(s: Setting) -> Tensor:
    read = _read(s)
    return _added(s, _f(s, read[0] * s.root, *read[1:]))


@mistake("dape-", says="ReLU in place of LeakyReLU(0.01)")
def relu(s: Setting) -> Tensor:
    return _added(s, _f(s, *_read(s), activation=torch.relu))


@mistake("dape-", says="LeakyReLU has slope 0.2 (the JAX and TensorFlow habit); it is 0.01")
def leakier(s: Setting) -> Tensor:
    return _added(s, _f(s, *_read(s), activation=nn.LeakyReLU(0.2)))


@mistake("dape-", says="GELU in place of LeakyReLU(0.01)")
def gelu(s: Setting) -> Tensor:
    return _added(s, _f(s, *_read(s), activation=nn.functional.gelu))


@mistake("dape-", "dape-v2-", says="the residual is added twice: f's output already holds A + B")
def residual_twice(s: Setting) -> Tensor:
    return s.right() + _added(s)


def _masked_before(fill: float):
    def masked_before_f(s: Setting) -> Tensor | None:
        hidden = ~s.case.visible
        if not hidden.any():
            return None
        return s.of_scores(s.scores.masked_fill(hidden, fill))

    return masked_before_f


MASKED_FIRST = (
    "the mask comes before f: f mixes heads, so that hidden keys come back with large values of either sign (or NaN). "
    "Mask after f"
)
for _fill in (-1e4, -1e9, torch.finfo(torch.float32).min, torch.finfo(torch.float64).min, -math.inf):
    MISTAKES.append(Mistake("mask-before-f", MASKED_FIRST, _masked_before(_fill), ("dape-", "dape-v2-"), masks=False))


# DAPE-v2 -------------------------------------------------------------------------------------------------------------


def _convolved(
    s: Setting, x: Tensor, *, mask_first: bool = True, mask_between: bool = True, flip: bool = False
) -> Tensor:
    assert isinstance(s.pe, DapeV2)
    shown = s.case.visible.double()

    def convolve(layer: nn.Conv2d, x: Tensor) -> Tensor:
        weight = layer.weight.flip(-1) if flip else layer.weight
        return nn.functional.conv2d(x, weight, layer.bias, padding=(0, layer.weight.shape[-1] // 2))

    hidden = convolve(s.pe.first, x * shown if mask_first else x)
    hidden = nn.functional.leaky_relu(hidden, LEAKY_SLOPE)
    return convolve(s.pe.second, hidden * shown if mask_between else hidden)


def _v2(s: Setting, **how: bool) -> Tensor:
    return _added(s, _convolved(s, torch.cat(_read(s), dim=-3), **how))


@mistake("dape-v2-", says="hidden cells are not set to 0 before the convolutions: the future leaks by a key or two")
def convolutions_see_the_future(s: Setting) -> Tensor:
    return _v2(s, mask_first=False, mask_between=False)


@mistake("dape-v2-", says="hidden cells are not set to 0 between the convolutions, as in the authors' program: rows "
         "then depend on the keys that follow. Compare with the option mask_hidden=false if you mean that")  # fmt: skip
def no_mask_between(s: Setting) -> Tensor:
    return _v2(s, mask_between=False)


@mistake("dape-v2-", says="kernels are flipped: cross-correlation is meant, as torch's convolutions compute it")
def kernels_flipped(s: Setting) -> Tensor:
    return _v2(s, flip=True)


# CoPE ----------------------------------------------------------------------------------------------------------------


def _cope(s: Setting, position: Tensor, *, scale: float = 1.0, whole: bool = False) -> Tensor:
    assert isinstance(s.base, Cope)
    position = position.clamp(0, s.base.table.shape[1] - 1)
    low, weight = position.floor(), position - position.floor()
    z = s.raw[0] @ s.base.table * scale
    below, above = (z.gather(-1, p.long()) for p in (low, position.ceil()))
    return (s.scores + (below if whole else weight * above + (1 - weight) * below)).squeeze(0)


def _counted(s: Setting, gates: Tensor) -> Tensor:
    return (gates * s.case.visible).flip(-1).cumsum(-1).flip(-1)


@mistake("cope", says="q E is divided by sqrt(d): only the scores are")
def table_scaled(s: Setting) -> Tensor:
    return _cope(s, _counted(s, s.scores.sigmoid()), scale=1 / s.root)


@mistake("cope", says="gates read scores that are not divided by sqrt(d)")
def gates_unscaled(s: Setting) -> Tensor:
    return _cope(s, _counted(s, (s.scores * s.root).sigmoid()))


@mistake("cope", says="the count leaves out the key itself: it goes from j, and not j + 1, to i")
def count_without_the_key(s: Setting) -> Tensor:
    gates = s.scores.sigmoid()
    return _cope(s, _counted(s, gates) - gates * s.case.visible)


@mistake("cope", says="counted from the first key to j instead of from j to i")
def counted_forwards(s: Setting) -> Tensor:
    return _cope(s, (s.scores.sigmoid() * s.case.visible).cumsum(-1))


@mistake("cope", says="hidden keys are counted, too: their gates must be 0")
def future_counted(s: Setting) -> Tensor:
    return _cope(s, s.scores.sigmoid().flip(-1).cumsum(-1).flip(-1))


@mistake("cope", says="positions are rounded down: neighbouring rows of the table must be interpolated")
def not_interpolated(s: Setting) -> Tensor:
    return _cope(s, _counted(s, s.scores.sigmoid()), whole=True)


# Transformer-XL ------------------------------------------------------------------------------------------------------


def _xl(s: Setting, *, u: Tensor | None = None, v: Tensor | None = None, sign: int = 1, scale: float | None = None,
        interleaved: bool = False, project: bool = True) -> Tensor:  # fmt: skip
    assert isinstance(s.base, TransformerXL)
    pe, (q, k) = s.base, s.raw
    heads, width = s.case.dims.num_heads, s.case.dims.head_dim
    u, v = (pe.u if u is None else u), (pe.v if v is None else v)
    position = sign * s.case.lag * (1 if s.case.causal else -1)
    encoded = sinusoid(position, heads * width, base=pe.base, dtype=torch.float64)
    if interleaved:
        encoded = torch.stack(encoded.chunk(2, dim=-1), dim=-1).flatten(-2)
    encoded = (pe.w_r(encoded) if project else encoded).unflatten(-1, (heads, width))
    by_position = torch.einsum("bhqd,qkhd->bhqk", q + v.unsqueeze(-2), encoded)
    content = torch.einsum("hd,bhkd->bhk", u, k).unsqueeze(-2)
    return (s.scores + (content + by_position) / (s.root if scale is None else scale)).squeeze(0)


@mistake("transformer-xl", says="u and v are exchanged: u goes with the content of keys, v with their position")
def u_and_v_exchanged(s: Setting) -> Tensor:
    assert isinstance(s.base, TransformerXL)
    return _xl(s, u=s.base.v, v=s.base.u)


@mistake("transformer-xl", says="the lag has the wrong sign inside the sinusoid")
def sinusoid_of_other_sign(s: Setting) -> Tensor:
    return _xl(s, sign=-1)


@mistake("transformer-xl", says="the terms of position are not divided by sqrt(d)")
def terms_not_scaled(s: Setting) -> Tensor:
    return _xl(s, scale=1.0)


@mistake("transformer-xl", says="sines and cosines alternate; the sinusoid has all sines first")
def alternating_sinusoid(s: Setting) -> Tensor:
    return _xl(s, interleaved=True)


@mistake("transformer-xl", says="the sinusoid is not multiplied by W_R")
def without_projection(s: Setting) -> Tensor:
    return _xl(s, project=False)
