"""How far attention may be from exact arithmetic: the bound that docs/numerics.md derives, coded once.

The logits are sums of products, a few activations and a bias. Written with the absolute values of everything that
enters (:class:`Sized`), they give a *size*: whatever the order of the operations, a computed logit is off by at most
``gamma * size``. The gradient of the size, again a sum of products of absolute values, bounds in the same way what is
lost on the way back; where rounding may turn the sign of a hidden unit, the whole path through that unit is in doubt.
"""

import math
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dape.ops.attention.check import make_grid
from dape.ops.attention.reference import masked_softmax, scaled_scores
from dape.positional.alibi import Alibi
from dape.positional.base import (
    LEAKY_SLOPE,
    AdditiveBias,
    PositionalEncoding,
    asymmetric_distance,
    share_heads,
)
from dape.positional.cope import Cope
from dape.positional.dape import Dape, DapeV2, DapeWrapper
from dape.positional.fire import EPSILON, Fire, psi
from dape.positional.fox import Fox
from dape.positional.grid import Grid
from dape.positional.inkling import Inkling
from dape.positional.kerple import Kerple, KerplePower, in_range
from dape.positional.multi_token import MultiToken
from dape.positional.sandwich import Sandwich
from dape.positional.sinusoidal import sinusoid
from dape.positional.t5 import T5
from dape.positional.talking_heads import TalkingHeads
from dape.positional.transformer_xl import TransformerXL
from dape.positional.two_rotations import TwoRotations

HALF = (torch.float16, torch.bfloat16)
FEW = 48
"""Operations of a path that are no sums: scaling, base 2, the bias itself (at most 16, see docs/numerics.md), ..."""
FEATURES = ("q_features", "k_features")
"""Of an encoding that reads any: inputs of a call as q and k are, named as in a grid."""
LARGEST_SIZE = 2.0**120
"""Beyond this size of the logits float32 may overflow, and nothing is promised."""


def unit(dtype: torch.dtype) -> float:
    """u: the largest relative error of rounding to this dtype."""
    return torch.finfo(dtype).eps / 2


def gamma(n: float, u: float) -> float:
    """The largest relative error after n roundings."""
    return n * u / (1 - n * u) if n * u < 0.5 else math.inf


# Sizes ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sized:
    """A value, its size, and that part of the size which came through a unit whose sign is in doubt."""

    value: Tensor
    size: Tensor
    doubt: Tensor

    @classmethod
    def of(cls, value: Tensor, size: Tensor | None = None) -> "Sized":
        size = value.abs() if size is None else size
        return cls(value, size, torch.zeros_like(size))

    def __add__(self, other: "Sized") -> "Sized":
        return Sized(self.value + other.value, self.size + other.size, self.doubt + other.doubt)

    def __mul__(self, factor: Tensor) -> "Sized":
        """By something exact that is not negative."""
        return Sized(self.value * factor, self.size * factor, self.doubt * factor)

    def leaky(self, slope: float, relative: float) -> "Sized":
        near = (self.value.abs() <= relative * self.size).to(self.size.dtype)
        value = torch.nn.functional.leaky_relu(self.value, slope)
        return Sized(value, self.size, self.doubt + near * self.size)


@dataclass
class Sizes:
    """The logits of a call with the sizes of everything in them. Everything is in float64."""

    pe: PositionalEncoding
    grid: Grid
    q: Tensor
    """Rotated, as ``k``."""
    k: Tensor
    q_size: Tensor
    k_size: Tensor
    features: dict[str, Tensor]
    """Their absolute values, which gradients are taken of."""
    leaves: dict[int, Tensor]
    """By the id of a parameter: its absolute value, which gradients are taken of."""
    relative: float
    """gamma of this call."""

    def of(self, parameter: Tensor) -> tuple[Tensor, Tensor]:
        return parameter.detach(), self.leaves[id(parameter)]

    def logits(self) -> Sized:
        heads = self.q.shape[1]
        value = scaled_scores(self.q, self.k)
        size = self.q_size @ share_heads(self.k_size, heads).transpose(-1, -2) / math.sqrt(self.q.shape[-1])
        scores = Sized.of(value, size)
        match self.pe:
            case Dape():
                return self._dape(self.pe, scores)
            case DapeV2():
                return self._dape_v2(self.pe, scores)
            case TransformerXL():
                return self._transformer_xl(self.pe, scores)
            case Cope():
                return self._cope(self.pe, scores)
            case TalkingHeads():
                return scores + self._linear(*self.of(self.pe.mix), scores)
            case MultiToken():
                return self._multi_token(self.pe, scores)
            case TwoRotations():
                return self._two_rotations(self.pe, scores)
            case AdditiveBias():
                return scores + self._bias(self.pe)
        return scores

    def _linear(self, weight: Tensor, size: Tensor, x: Sized) -> Sized:
        def on(w: Tensor, y: Tensor) -> Tensor:
            return (w @ y.flatten(-2)).unflatten(-1, y.shape[-2:])

        return Sized(on(weight, x.value), on(size, x.size), on(size, x.doubt))

    def _affine(self, layer: Any, *inputs: Sized) -> Sized:
        """Across heads, as ``across_heads`` does it."""
        bias, bias_size = (b.view(-1, 1, 1) for b in self.of(layer.bias))
        out, at = Sized.of(bias, bias_size), 0
        weight, size = self.of(layer.weight)
        for x in inputs:
            columns = slice(at, at + x.value.shape[-3])
            out, at = out + self._linear(weight[:, columns], size[:, columns], x), columns.stop
        return out

    def _bias(self, pe: PositionalEncoding) -> Sized:
        lag = self.grid.lag()
        causal = self.grid.causal
        match pe:
            case Fire():
                return self._fire(pe)
            case T5():
                value, size = (
                    torch.nn.functional.embedding(pe.bucket(lag, causal=causal), t) for t in self.of(pe.table)
                )
                return Sized.of(value.movedim(-1, -3) * pe.scale, size.movedim(-1, -3) * pe.scale)
            case Kerple():
                return self._kerple(pe)
            case Alibi() | Sandwich():
                return Sized.of(pe.bias_on(self.grid).detach())
            case Fox():
                return self._fox(pe)
            case Inkling():
                return self._inkling(pe)
        raise NotImplementedError(f"no size is known for the bias of {type(pe).__name__}; add it here")

    def _kerple(self, pe: Kerple) -> Sized:
        distance = asymmetric_distance(
            self.grid.lag(), causal=self.grid.causal, form=pe.bidirectional, dtype=torch.float64
        ).unsqueeze(-3)
        r1, r2 = (self._in_range(p, top).view(-1, 1, 1) for p, top in zip((pe.r1, pe.r2), pe.ceiling, strict=True))
        if isinstance(pe, KerplePower):
            # |d/d r2 d^r2| = d^r2 |log d|, also below 1, where the logarithm is negative
            power = (distance**r2).detach()
            slope = (power * distance.log().abs()).nan_to_num(0.0, posinf=0.0)
            size = r1 * (power + slope * (r2 - r2.detach()))
        else:
            size = r1 * torch.log1p(r2 * distance)
        return Sized.of(-size.detach(), size)

    def _in_range(self, parameter: Tensor, top: float | None) -> Tensor:
        """The projected value, with the gradient of the parameter itself."""
        leaf = self.leaves[id(parameter)]
        return in_range(parameter.detach(), top) + leaf - leaf.detach()

    def _fire(self, pe: Fire) -> Sized:
        grid = self.grid
        (c, c_size), (m, m_size) = self.of(pe.c), self.of(pe.threshold_multiplier)
        lags = grid.extreme_lags()
        reach = torch.stack([pe._distance(lag, grid.causal, pe.precision) for lag in lags]).amax(0)
        distance = pe._distance(grid.lag(), grid.causal, pe.precision)
        u = psi(distance, c) / (psi(torch.maximum(reach, (m * pe.threshold).abs()), c) + EPSILON).unsqueeze(-1)
        below = 1 / (psi(torch.maximum(reach, m_size * pe.threshold), c_size) + EPSILON).unsqueeze(-1)
        below = 2 * below.detach() - below  # a quotient falls with what it is divided by: sizes only rise
        x = Sized.of(u.unsqueeze(-3), (psi(distance, c_size) * below).unsqueeze(-3))
        # The larger of reach and threshold: where rounding decides which, the gradient of the threshold is in doubt.
        threshold = (m * pe.threshold).abs()
        near = ((reach - threshold).abs() <= self.relative * (reach + threshold)).to(u.dtype)
        doubtful = near.unsqueeze(-1) * psi(distance, c_size) / (psi(threshold, c).detach() + EPSILON)
        doubtful = doubtful * (1 + m_size - m_size.detach())
        x = replace(x, doubt=x.doubt + doubtful.unsqueeze(-3))
        hidden = self._affine(pe.first, x).leaky(pe.slope, self.relative)
        return self._affine(pe.second, hidden)

    def _fox(self, pe: Fox) -> Sized:
        """Of differences: however far the text is, sums of gates are subtracted before they are rounded."""
        value = pe.bias_on(self.grid).detach()
        rows, keys = (self.features[name].transpose(-1, -2) for name in FEATURES)
        moved = rows.unsqueeze(-1) + keys.unsqueeze(-2)
        return Sized.of(value, value.abs() + moved - moved.detach())

    def _inkling(self, pe: Inkling) -> Sized:
        _, profiles = self.of(pe.profiles)
        r = self.features["q_features"].unflatten(-1, (pe.dims.num_heads, pe.rank)).transpose(-2, -3)
        by_lag, lag = (r * pe.temperature(self.grid)) @ profiles, self.grid.lag().unsqueeze(-3)
        extent = profiles.shape[1]
        index = lag.clamp(0, extent - 1).expand(*by_lag.shape[:-1], lag.shape[-1])
        size = by_lag.gather(-1, index).masked_fill((lag < 0) | (lag >= extent), 0.0)
        return Sized.of(pe.bias_on(self.grid).detach(), size)

    def _dape(self, pe: Dape, scores: Sized) -> Sized:
        if not pe.has_bias:
            return scores + self._mixed(pe, scores)
        bias = self._bias(pe.base)
        match pe.variant:
            case "concat_residual" | "concat":
                f = self._mixed(pe, scores, bias)
            case "add_residual":
                f = self._mixed(pe, scores + bias)
            case _:
                f = self._mixed(pe, bias)
        return scores + f + bias if pe._keeps_bias else scores + f

    def _mixed(self, pe: Dape, *inputs: Sized) -> Sized:
        return self._affine(pe.f.second, self._affine(pe.f.first, *inputs).leaky(LEAKY_SLOPE, self.relative))

    def _dape_v2(self, pe: DapeV2, scores: Sized) -> Sized:
        visible = self.grid.visible()
        shown = torch.ones((), dtype=torch.float64) if visible is None else visible.unsqueeze(-3).double()
        bias = self._bias(pe.base) if pe.has_bias else None
        x = scores
        if bias is not None:
            parts = zip((scores.value, scores.size, scores.doubt), (bias.value, bias.size, bias.doubt), strict=True)
            x = Sized(*(torch.cat([a, b.expand_as(a)], dim=-3) for a, b in parts))
        hidden = self._convolved(pe.first, x * shown).leaky(LEAKY_SLOPE, self.relative)
        out = scores + self._convolved(pe.second, hidden * shown if pe.mask_hidden else hidden)
        return out if bias is None else out + bias

    def _convolved(self, layer: Any, x: Sized) -> Sized:
        (weight, size), (bias, bias_size) = self.of(layer.weight), self.of(layer.bias)

        def on(y: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
            return torch.nn.functional.conv2d(y, w, b, padding=layer.padding)

        return Sized(on(x.value, weight, bias), on(x.size, size, bias_size), on(x.doubt, size, None))

    def _transformer_xl(self, pe: TransformerXL, scores: Sized) -> Sized:
        grid, heads, width = self.grid, pe.dims.num_heads, pe.dims.head_dim
        (u, u_size), (v, v_size), (w, w_size) = (self.of(p) for p in (pe.u, pe.v, pe.w_r.weight))
        lags, index = grid.lag_table()
        s = sinusoid(pe.sinusoid_position(lags, grid), heads * width, base=pe.base, dtype=torch.float64)

        def term(u: Tensor, v: Tensor, w: Tensor, s: Tensor, q: Tensor, k: Tensor) -> Tensor:
            content = torch.einsum("hd,...hkd->...hk", u, share_heads(k, heads)).unsqueeze(-2)
            encoded = (s @ w.t()).view(-1, heads, width).transpose(0, 1)
            by_lag = torch.einsum("...hqd,hnd->...hqn", q + v.unsqueeze(-2), encoded)
            position = by_lag.gather(-1, index.unsqueeze(-3).expand(*by_lag.shape[:-1], index.shape[-1]))
            return (content + position) / math.sqrt(width)

        size = term(u_size, v_size, w_size, s.abs(), self.q_size, self.k_size)
        return scores + Sized.of(term(u, v, w, s, self.q, self.k), size)

    def _multi_token(self, pe: MultiToken, scores: Sized) -> Sized:
        visible = self.grid.visible()
        shown = scores if visible is None else scores * visible.unsqueeze(-3).double()
        (theta, theta_size), (mix, mix_size) = self.of(pe.theta), self.of(pe.mix)
        heads, taps = theta.shape

        def on(y: Tensor, w: Tensor) -> Tensor:
            kernel = w.view(heads, 1, 1, taps)
            return torch.nn.functional.conv2d(y, kernel, padding=(0, taps // 2), groups=heads)

        near = scores + Sized(on(shown.value, theta), on(shown.size, theta_size), on(shown.doubt, theta_size))
        group = mix.shape[1]
        weight, size = (torch.block_diag(*w.unflatten(0, (-1, group))) for w in (mix, mix_size))
        return near + self._linear(weight, size, near)

    def _two_rotations(self, pe: TwoRotations, scores: Sized) -> Sized:
        """Either rotation makes a channel of two, with factors of at most 1."""
        value = pe.logits(scores.value, self.q, self.k, self.grid).detach()
        q, k = (x + paired(x, interleaved=pe.rope.interleaved) for x in (self.q_size, self.k_size))
        return Sized.of(value, q @ share_heads(k, self.q.shape[1]).transpose(-1, -2) / math.sqrt(self.q.shape[-1]))

    def _cope(self, pe: Cope, scores: Sized) -> Sized:
        (table, table_size), visible = self.of(pe.table), self.grid.visible()
        last = table.shape[1] - 1
        gate = scores.value.sigmoid()
        gate_size = gate + gate * (1 - gate) * scores.size
        if visible is not None:
            gate, gate_size = (x * visible.unsqueeze(-3) for x in (gate, gate_size))
        position, size = (x.flip(-1).cumsum(-1).flip(-1) for x in (gate, gate_size))
        position = position.clamp(max=last)
        z, z_size = self.q @ table, self.q_size @ table_size
        low = position.floor()
        weight = position - low
        below, above = (z.gather(-1, p.long()) for p in (low, position.ceil()))
        # A position off by a little may lie between the next two rows of the table. Off by more, it may be anywhere.
        off = self.relative * size
        near = [z_size.gather(-1, (low + step).clamp(0, last).long()) for step in (-1, 0, 1, 2)]
        around = torch.where(off < 1, torch.stack(near).sum(0), z_size.sum(-1, keepdim=True))
        kink = ((position - position.round()).abs() <= off).to(size.dtype)
        found = Sized(weight * above + (1 - weight) * below, near[1] + near[2] + around * size, kink * around * size)
        return scores + found


# The bound -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rounding:
    """What an implementation rounds, apart from every operation to float32 (float64 if the inputs are)."""

    dtype: torch.dtype
    weights: bool = False
    """Weights, their gradients and outputs are rounded to ``dtype`` before they are multiplied: sdpa and triton."""
    factor: float = 1.0
    """Of the path's length: Triton adds f in three parts."""

    @property
    def u(self) -> float:
        return unit(torch.float64 if self.dtype == torch.float64 else torch.float32)

    @property
    def half(self) -> float:
        """Twice as much as one rounding: the Triton interpreter cuts off."""
        return 2 * unit(self.dtype) if self.dtype in HALF else 0.0

    @property
    def smallest(self) -> float:
        """What underflow may lose of a number in ``dtype``."""
        return torch.finfo(self.dtype).smallest_normal * unit(self.dtype) * 2


@dataclass
class Exact:
    """A call of attention in float64, and how far the same call in another precision may be from it."""

    pe: PositionalEncoding
    q: Tensor
    k: Tensor
    v: Tensor
    towards: Tensor
    rounding: Rounding
    call: dict[str, Any]

    def __post_init__(self) -> None:
        self.given = self.pe
        self.pe = deepcopy(self.pe).double()
        self.q, self.k, self.v, self.towards = (x.detach().double() for x in (self.q, self.k, self.v, self.towards))
        options = {"causal": True, "q_pos": None, "k_pos": None, "key_padding_mask": None, **self.call}
        given = options.pop("features", None)
        self.features = {} if given is None else dict(zip(FEATURES, (x.detach().double() for x in given), strict=True))
        self.settled, grid = self.pe.settle(make_grid(self.q, self.k, **options))
        self.grid = replace(grid, **self.features)
        self.parameters = named_parameters(self.pe)
        if self.q.numel() and self.k.numel():
            self._run()
        else:  # nothing is computed: zeros, exactly
            inputs = {"output": self.towards, "q": self.q, "k": self.k, "v": self.v, **self.features}
            names = {**inputs, **self.parameters}
            self.values = {name: torch.zeros_like(x) for name, x in names.items()}
            self.bounds = self.values

    def _run(self) -> None:
        """The definition, with the gradient of the logits kept."""
        leaves = {"q": self.q, "k": self.k, "v": self.v}
        q, k, v = (x.clone().requires_grad_() for x in leaves.values())
        features = {name: x.clone().requires_grad_() for name, x in self.features.items()}
        grid = replace(self.grid, **features)
        self.turned_q, self.turned_k = self.settled.rotate(q, k, grid)
        logits = self.settled.logits(scaled_scores(self.turned_q, self.turned_k), self.turned_q, self.turned_k, grid)
        weights = masked_softmax(logits, grid.visible())
        out = weights @ share_heads(v, q.shape[1])
        wanted = [logits, q, k, v, *features.values(), *self.parameters.values()]
        found = torch.autograd.grad(out, wanted, self.towards, allow_unused=True)
        zeros = [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]
        self.logits, self.weights, self.d_logits = logits.detach(), weights.detach(), zeros[0]
        names = ["q", "k", "v", *self.features, *self.parameters]
        self.values = {"output": out.detach(), **dict(zip(names, zeros[1:], strict=True))}

    @cached_property
    def visible(self) -> Tensor:
        visible = self.grid.visible()
        shown = torch.ones(1, 1, 1, dtype=torch.bool) if visible is None else visible
        return shown.unsqueeze(-3).expand_as(self.logits)

    @cached_property
    def _relative(self) -> float:
        """gamma: roundings on the longest path of a logit."""
        fan_in = sum(p[0].numel() for p in self.parameters.values() if p.dim() > 1 and p.numel())
        keys = self.logits.shape[-1] if isinstance(self._innermost, Cope) else 0
        length = self.q.shape[-1] + fan_in + keys + FEW
        turned = self._turns * 2 * self.rounding.half
        return gamma(length * self.rounding.factor, self.rounding.u) + turned

    @property
    def _innermost(self) -> PositionalEncoding:
        return self.settled.base if isinstance(self.settled, DapeWrapper) else self.settled

    @property
    def _turns(self) -> bool:
        return type(self._innermost).rotate is not PositionalEncoding.rotate

    def _sizes(self) -> tuple[dict[str, Tensor], Sized]:
        leaves = {
            name: x.detach().abs().clone().requires_grad_()
            for name, x in {"q": self.q, "k": self.k, **self.features, **self.parameters}.items()
        }
        sizes = (leaves["q"], leaves["k"])
        if self._turns:
            sizes = tuple(
                self._turned(size, x, turned)
                for size, x, turned in zip(
                    sizes, (self.q, self.k), (self.turned_q.detach(), self.turned_k.detach()), strict=True
                )
            )
        logits = Sizes(
            pe=self.settled,
            grid=self.grid,
            q=self.turned_q.detach(),
            k=self.turned_k.detach(),
            q_size=sizes[0],
            k_size=sizes[1],
            features={name: leaves[name] for name in self.features},
            leaves={id(p): leaves[name] for name, p in self.parameters.items()},
            relative=self._relative,
        ).logits()
        return leaves, logits

    def _turned(self, size: Tensor, x: Tensor, turned: Tensor) -> Tensor:
        """Two channels make each one that is turned, with factors of at most the amplitude; what underflows in float16
        is as if the smallest normal number had been rounded."""
        norms = x.norm(dim=-1)
        amplitude = max(1.0, float((turned.norm(dim=-1) / norms.clamp(min=1e-300)).max())) if x.numel() else 1.0
        other = paired(size, interleaved=getattr(self._innermost, "interleaved", False))
        return amplitude * (size + other) + torch.finfo(self.rounding.dtype).smallest_normal

    @cached_property
    def bounds(self) -> dict[str, Tensor]:
        """Of the output and of every gradient, entry by entry."""
        rounding, u = self.rounding, self.rounding.u
        leaves, logits = self._sizes()
        torch.testing.assert_close(  # what the size was made of is what the encoding computes
            logits.value.expand_as(self.logits)[self.visible], self.logits[self.visible], rtol=1e-9, atol=1e-9
        )
        if self.logits.numel() and float(logits.size.detach().max()) > LARGEST_SIZE:
            return {name: torch.full_like(x, math.inf) for name, x in self.values.items()}
        d_weights = self._off_weights(logits)
        v, towards = share_heads(self.v, self.q.shape[1]).abs(), self.towards.abs()
        weights, n, e = self.weights + d_weights, self.weights.shape[-1], self.v.shape[-1]
        d_out = d_weights @ v + gamma(n + 4, u) * (weights @ v)
        out = self.values["output"].abs() + d_out

        # dL = P (dP - delta)
        d_p = (gamma(e + 4, u) + rounding.half * rounding.weights) * (towards @ v.transpose(-1, -2))
        delta = (towards * d_out).sum(-1, keepdim=True)
        delta = delta + (gamma(n + e + 4, u) + 2 * rounding.half * rounding.weights) * (towards * out).sum(
            -1, keepdim=True
        )
        brackets = (self.towards @ share_heads(self.v, self.q.shape[1]).transpose(-1, -2)) - (
            self.towards * self.values["output"]
        ).sum(-1, keepdim=True)
        d_d_logits = (d_weights * (brackets.abs() + d_p + delta) + self.weights * (d_p + delta)) * self.visible
        # A key beside which all others vanish in the sum of a row has the gradient 0 in `fused`. The exact one is at
        # most the weight of those others, a few u, times the largest bracket.
        d_d_logits = d_d_logits + torch.where(self.weights > 1 - 4 * u, self.d_logits.abs(), 0.0)
        known = self.d_logits.abs() + d_d_logits
        if rounding.weights:
            d_d_logits = d_d_logits + rounding.half * known + rounding.smallest * self.visible
        cells = self.logits.numel() / max(1, self.logits.shape[1])
        sums = gamma(cells + FEW, u)
        back = d_d_logits + (self._relative + sums) * known

        found = _gradients([logits.size, logits.doubt], list(leaves.values()), [back, known], self.logits.shape)
        bounds = dict(zip(leaves, found, strict=True))
        if rounding.half:  # gradients of rotated tensors, and of each head that shares a key head, are rounded too
            again = _gradients([logits.size], [leaves["q"], leaves["k"]], [known], self.logits.shape)
            for name, x in zip(("q", "k"), again, strict=True):
                bounds[name] = bounds[name] + 2 * rounding.half * x
        d_v = (d_weights + sums * weights + rounding.half * weights).transpose(-1, -2) @ towards
        bounds["v"] = d_v.unflatten(1, (*self.v.shape[1:2], -1)).sum(2) if d_v.numel() else torch.zeros_like(self.v)
        bounds["output"] = d_out
        return {name: self._rounded(name, bounds[name]) for name in self.values}

    def _off_weights(self, logits: Sized) -> Tensor:
        """e^x - 1 of what may be off in the logit and in the sum of the row, never more than 1."""
        rounding, u, hidden = self.rounding, self.rounding.u, ~self.visible
        top = self.logits.masked_fill(hidden, -math.inf).amax(-1, keepdim=True) if self.logits.numel() else self.logits
        off = self._relative * logits.size.detach() + u * (8 + 6 * (self.logits - top).abs())
        off = off.expand_as(self.logits).masked_fill(hidden, 0.0)
        # In logarithms: a weight of e^-5000 is 0 here, and may be 1 if its logit is off by 5000.
        log = self.logits.masked_fill(hidden, -math.inf).log_softmax(-1).masked_fill(hidden, -math.inf)
        off = off + (log + off).logsumexp(-1, keepdim=True).clamp(min=0.0)
        changed = torch.where(off < 1, self.weights * torch.expm1(off.clamp(max=1.0)), (log + off).clamp(max=0.0).exp())
        lost = torch.finfo(torch.float32).smallest_normal if rounding.dtype != torch.float64 else 1e-300
        found = (changed + self.weights * gamma(self.logits.shape[-1] + 16, u)).clamp(max=1.0) + lost
        if rounding.weights:
            found = found + rounding.half * (self.weights + found) + rounding.smallest
        return found.masked_fill(hidden, 0.0)

    def _rounded(self, name: str, bound: Tensor) -> Tensor:
        """The result is rounded to its own dtype. Sizes that are multiplied may underflow on the way."""
        value = self.values[name].abs()
        dtype = self.rounding.dtype if name in ("output", "q", "k", "v") else self._dtype_of(name)
        largest = max([1.0, *(float(x.abs().max()) for x in (self.q, self.k, self.v, self.towards) if x.numel())])
        rows = float(self.visible.any()) if self.visible.numel() else 0.0
        lost = rows * self.logits.numel() * largest**3 * (1e-37 if self.rounding.dtype != torch.float64 else 1e-290)
        own = Rounding(dtype)
        heads_that_share = self.q.shape[1] // self.k.shape[1] + 2
        seen = bound > 0
        bound = bound + (lost + own.smallest * heads_that_share * (dtype in HALF)) * seen
        twice = 2.0 if self.rounding.dtype == torch.float64 else 1.0  # the reference has rounded as well
        return twice * bound + unit(dtype) * (value + bound)

    def _dtype_of(self, name: str) -> torch.dtype:
        if name in self.features:
            return self.call["features"][FEATURES.index(name)].dtype
        return named_parameters(self.given)[name].dtype


def paired(x: Tensor, *, interleaved: bool) -> Tensor:
    """For every channel the other one of its pair."""
    return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) if interleaved else x.roll(x.shape[-1] // 2, -1)


def named_parameters(pe: PositionalEncoding) -> dict[str, Tensor]:
    """Not to be taken for q, k or v: one of Transformer-XL's is called v."""
    return {f"pe.{name}": parameter for name, parameter in pe.named_parameters()}


def _gradients(of: list[Tensor], leaves: list[Tensor], towards: list[Tensor], shape: Iterable[int]) -> list[Tensor]:
    pairs = [(x.expand(tuple(shape)), y) for x, y in zip(of, towards, strict=True) if x.requires_grad]
    if not pairs:
        return [torch.zeros_like(x) for x in leaves]
    outputs, cotangents = zip(*pairs, strict=True)
    found = torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


def excess(exact: Exact, actual: dict[str, Tensor]) -> dict[str, float]:
    """The largest error over its bound, of the output and of every gradient; more than 1 is a defect. Where the exact
    number may not fit its dtype anything goes."""
    found = {}
    for name, value in exact.values.items():
        bound, given = exact.bounds[name], actual[name]
        free = (value.abs() + bound >= torch.finfo(given.dtype).max) | bound.isinf()
        error = (given.double() - value).abs()
        ratio = torch.where(error == 0, 0.0, error / bound).masked_fill(free, 0.0)
        ratio = ratio.nan_to_num(nan=math.inf)
        found[name] = float(ratio.max()) if ratio.numel() else 0.0
    return found
