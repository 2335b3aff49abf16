"""Mistakes of single additive biases."""

import math

import torch
from torch import Tensor

from dape.conformance.mistakes.base import Family, Setting, per_head
from dape.positional.alibi import alibi_slopes
from dape.positional.angles import angles, frequencies
from dape.positional.base import LEAKY_SLOPE, asymmetric_distance
from dape.positional.fire import EPSILON, Fire, psi
from dape.positional.kerple import FLOOR, Kerple, KerplePower
from dape.positional.layers import across_heads
from dape.positional.sandwich import Sandwich
from dape.positional.t5 import T5

mistake = MISTAKES = Family()


def distance(s: Setting) -> Tensor:
    return asymmetric_distance(s.case.lag, causal=s.case.causal, form="past_bonus", dtype=torch.float64)


# ALiBi ---------------------------------------------------------------------------------------------------------------


def _with_slopes(s: Setting, slopes: Tensor) -> Tensor:
    return s.of_bias(-per_head(slopes) * distance(s))


@mistake("alibi", says="slopes 2^(-8n/h) for a number of heads that is no power of two, the rule of ALiBi's text; "
         "its program (and DAPE's) takes those of the next smaller power and every second one of the next "
         "larger")  # fmt: skip
def slopes_of_the_text(s: Setting) -> Tensor:
    heads = torch.arange(1, s.case.dims.num_heads + 1, dtype=torch.float64)
    return _with_slopes(s, torch.exp2(-8 * heads / s.case.dims.num_heads))


@mistake(
    "alibi", says="the first h slopes of the next larger power of two, without the rule for other numbers of heads"
)
def slopes_cut_off(s: Setting) -> Tensor:
    larger = 1 << (s.case.dims.num_heads - 1).bit_length()
    return _with_slopes(s, alibi_slopes(larger, dtype=torch.float64)[: s.case.dims.num_heads])


@mistake("alibi", says="slopes are sorted by size; those of the program are not, where h is no power of two")
def slopes_sorted(s: Setting) -> Tensor:
    return _with_slopes(s, alibi_slopes(s.case.dims.num_heads, dtype=torch.float64).sort(descending=True)[0])


@mistake("alibi", says="slopes begin at 2^0 (heads counted from 0)")
def slopes_from_one(s: Setting) -> Tensor:
    heads = s.case.dims.num_heads
    return _with_slopes(s, alibi_slopes(heads, dtype=torch.float64) * 2 ** (8 / (1 << (heads.bit_length() - 1))))


@mistake("alibi", says="the row-shifted form +m j: equal under softmax alone, wrong as a bias and inside DAPE")
def row_shifted(s: Setting) -> Tensor:
    slopes = alibi_slopes(s.case.dims.num_heads, dtype=torch.float64)
    return s.of_bias((per_head(slopes) * s.case.k_pos).expand(-1, len(s.case.q_pos), -1))


@mistake("alibi", "kerple", "kerple-power", says="without mask, past keys must count half a step nearer than future "
         "ones; here both sides are the same")  # fmt: skip
def symmetric_sides(s: Setting) -> Tensor:
    lag = s.case.lag.abs() if not s.case.causal else s.case.lag.clamp(min=0)
    if isinstance(s.base, Kerple):
        return s.of_bias(s.base.kernel(lag.double(), *(per_head(p.clamp(FLOOR)) for p in (s.base.r1, s.base.r2))))
    return s.of_bias(-per_head(alibi_slopes(s.case.dims.num_heads, dtype=torch.float64)) * lag)


# Kerple --------------------------------------------------------------------------------------------------------------


def _kerple(s: Setting, change) -> Tensor:
    assert isinstance(s.base, Kerple)
    r1, r2 = (per_head(change(p)) for p in (s.base.r1, s.base.r2))
    return s.of_bias(s.base.kernel(distance(s), r1, r2))


@mistake(
    "kerple", "kerple-power", says="r1 and r2 are not kept at 0.01 or more: values out of range are used as they are"
)
def parameters_not_clamped(s: Setting) -> Tensor:
    return _kerple(s, lambda p: p)


@mistake("kerple", "kerple-power", says="r1 and r2 out of range are replaced by their absolute values, not by 0.01")
def absolute_parameters(s: Setting) -> Tensor:
    return _kerple(s, torch.abs)


@mistake("kerple-power", says="the exponent r2 is not kept at 2 or less")
def exponent_above_two(s: Setting) -> Tensor:
    return _kerple(s, lambda p: p.clamp(min=FLOOR))


@mistake("kerple", "kerple-power", says="r1 and r2 are exchanged")
def parameters_exchanged(s: Setting) -> Tensor:
    assert isinstance(s.base, Kerple)
    top = s.base.ceiling
    r1, r2 = (per_head(p.clamp(FLOOR, t)) for p, t in zip((s.base.r2, s.base.r1), top, strict=True))
    return s.of_bias(s.base.kernel(distance(s), r1, r2))


@mistake("kerple", says="r2 is missing inside the logarithm: log(1 + |i-j|)")
def without_r2(s: Setting) -> Tensor:
    assert isinstance(s.base, Kerple)
    return s.of_bias(-per_head(s.base.r1.clamp(FLOOR)) * torch.log1p(distance(s)))


@mistake("kerple", says="the logarithm has base 2, not e")
def logarithm_of_base_2(s: Setting) -> Tensor:
    return s.of_bias(s.bias() / math.log(2))


@mistake("kerple", says="this is the power kernel -r1 |i-j|^r2; `kerple` is the logarithmic one")
def the_power_kernel(s: Setting) -> Tensor:
    assert isinstance(s.base, Kerple)
    return s.of_bias(KerplePower.kernel(distance(s), *(per_head(p.clamp(FLOOR)) for p in (s.base.r1, s.base.r2))))


# T5 ------------------------------------------------------------------------------------------------------------------


@mistake("t5", says="buckets of the bidirectional form (half of them for the future) under a causal mask")
def bidirectional_buckets(s: Setting) -> Tensor:
    assert isinstance(s.base, T5)
    return s.of_bias(s.base.bias_at(s.case.lag, causal=False))


@mistake("t5", says="bidirectional buckets with past and future exchanged")
def bidirectional_buckets_exchanged(s: Setting) -> Tensor:
    assert isinstance(s.base, T5)
    return s.of_bias(s.base.bias_at(-s.case.lag, causal=False))


@mistake("t5", says="causal buckets, where attention has no mask: the whole future shares one bucket")
def causal_buckets(s: Setting) -> Tensor:
    assert isinstance(s.base, T5)
    return s.of_bias(s.base.bias_at(s.case.lag, causal=True))


@mistake("t5", says="no multiplier sqrt(d). T5 itself has none; DAPE's program has: compare with the option "
         "bias_scale=one if you mean T5's own")  # fmt: skip
def without_multiplier(s: Setting) -> Tensor:
    return s.of_bias(s.bias() / s.root)


@mistake("t5", says="every distance has a bucket of its own up to the last: the logarithmic half is missing")
def linear_buckets(s: Setting) -> Tensor:
    assert isinstance(s.base, T5)
    side = s.base.num_buckets if s.case.causal else s.base.num_buckets // 2
    bucket = (s.case.lag.clamp(min=0) if s.case.causal else s.case.lag.abs()).clamp(max=side - 1)
    bucket = bucket if s.case.causal else bucket + side * (s.case.lag < 0)
    return s.of_bias(s.base.table[bucket].movedim(-1, 0) * s.base.scale)


# Sandwich ------------------------------------------------------------------------------------------------------------


def _sandwich(s: Setting, summed, *, shift: float = 64.0) -> Tensor:
    assert isinstance(s.base, Sandwich)
    heads = s.case.dims.num_heads
    head = torch.arange(1, heads + 1, dtype=torch.float64)
    w = frequencies(s.base.width, s.base.base, torch.device("cpu"))
    return s.of_bias((summed(w) - shift) / per_head(8 * head / heads))


@mistake("sandwich", says="the halves of one side are exchanged: sines meet cosines, which gives sin((i + j) w)")
def halves_swapped(s: Setting) -> Tensor:
    position = s.case.q_pos.unsqueeze(-1) + s.case.k_pos
    return _sandwich(s, lambda w: angles(position, w).sin().sum(-1))


@mistake("sandwich", says="sines in place of cosines: an odd function of the lag")
def sines(s: Setting) -> Tensor:
    return _sandwich(s, lambda w: angles(s.case.lag, w).sin().sum(-1))


@mistake("sandwich", says="the constant w/2 is not subtracted: equal under softmax alone, wrong inside DAPE")
def without_constant(s: Setting) -> Tensor:
    return _sandwich(s, lambda w: angles(s.case.lag, w).cos().sum(-1), shift=0.0)


@mistake("sandwich", says="frequencies begin at m = 1, not 0")
def frequencies_from_one(s: Setting) -> Tensor:
    assert isinstance(s.base, Sandwich)
    slower = s.base.base ** (-2 / s.base.width)
    return _sandwich(s, lambda w: angles(s.case.lag, w * slower).cos().sum(-1))


@mistake("sandwich", says="the temperature multiplies instead of divides: 8n/h is a divisor")
def temperature_multiplies(s: Setting) -> Tensor:
    heads = s.case.dims.num_heads
    ratio = 8 * torch.arange(1, heads + 1, dtype=torch.float64) / heads
    return s.of_bias(s.bias() * per_head(ratio**2))


# FIRE ----------------------------------------------------------------------------------------------------------------


def _fire(s: Setting, u: Tensor, *, slope: float | None = None) -> Tensor:
    assert isinstance(s.base, Fire)
    first = across_heads(s.base.first, u.unsqueeze(-3))
    hidden = torch.nn.functional.leaky_relu(first, s.base.slope if slope is None else slope)
    return s.of_bias(across_heads(s.base.second, hidden))


def _psi(s: Setting, x: Tensor) -> Tensor:
    assert isinstance(s.base, Fire)
    return psi(x, s.base.c)


def _near(s: Setting) -> Tensor:
    return _psi(s, distance(s))


def _threshold(s: Setting) -> Tensor:
    assert isinstance(s.base, Fire)
    return (s.base.threshold * s.base.threshold_multiplier).abs()


@mistake("fire", says="the normalisation is missing: psi(i-j) is not divided by psi(max(L, i))")
def without_normalisation(s: Setting) -> Tensor:
    return _fire(s, _near(s))


@mistake("fire", says="the threshold L is missing: divided by psi(i), also for i < L")
def without_threshold(s: Setting) -> Tensor:
    return _fire(s, _near(s) / (_psi(s, s.case.q_pos.double()) + EPSILON).unsqueeze(-1))


@mistake("fire", says="divided by psi(L) for every row: the denominator must grow with i beyond L")
def threshold_alone(s: Setting) -> Tensor:
    return _fire(s, _near(s) / (_psi(s, _threshold(s)) + EPSILON))


@mistake("fire", says="divided by psi(max(L, length)) for every row: i is the query's position, not the length")
def normalised_by_length(s: Setting) -> Tensor:
    reach = torch.maximum(_threshold(s), torch.tensor(float(s.case.length)))
    return _fire(s, _near(s) / (_psi(s, reach) + EPSILON))


@mistake("fire", says="distances are normalised without psi: (i-j) / max(L, i)")
def without_logarithm(s: Setting) -> Tensor:
    return _fire(s, distance(s) / torch.maximum(_threshold(s), s.case.q_pos.double()).unsqueeze(-1))


@mistake("fire", says="the learned multiplier of L is not used")
def without_multiplier_of_threshold(s: Setting) -> Tensor:
    assert isinstance(s.base, Fire)
    reach = s.case.q_pos.double().clamp(min=s.base.threshold)
    return _fire(s, _near(s) / (psi(reach, s.base.c) + EPSILON).unsqueeze(-1))


@mistake("fire", says="the other activation: FIRE alone has ReLU, FIRE inside DAPE has LeakyReLU(0.01)")
def other_activation(s: Setting) -> Tensor:
    assert isinstance(s.base, Fire)
    return _fire(s, s.base.normalised_distance(s.case.grid), slope=LEAKY_SLOPE - s.base.slope)
