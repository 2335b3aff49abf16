"""The dense baselines: attention as the papers list it, with every matrix in full.

They take the same arguments as the operator, so that they can be verified and timed in the same way.
"""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from dape.positional.base import LEAKY_SLOPE, AdditiveBias
from dape.positional.dape import Dape
from dape.positional.grid import Grid
from dape.positional.layers import Affine


def appendix(
    q: Float[Tensor, "b h t d"],
    k: Float[Tensor, "b h t d"],
    v: Float[Tensor, "b h t d"],
    pe: Dape,
    *,
    causal: bool,
    features: Float[Tensor, "b t n"] | None = None,
) -> Float[Tensor, "b h t d"]:
    """DAPE as listed in the appendix of its paper: concatenate, heads last, two linear layers, heads back."""
    scores = scaled_scores(q, k)
    static = bias(pe, q, causal=causal, features=features)
    x = F.leaky_relu(hidden_units(scores, static, pe), LEAKY_SLOPE)
    x = _linear(x, pe.f.second)
    logits = scores + static + x.permute(0, 3, 1, 2)
    return _attend(logits, v, causal=causal)


def static(
    q: Float[Tensor, "b h t d"],
    k: Float[Tensor, "b h t d"],
    v: Float[Tensor, "b h t d"],
    pe: Dape | AdditiveBias,
    *,
    causal: bool,
    features: Float[Tensor, "b t n"] | None = None,
) -> Float[Tensor, "b h t d"]:
    """The bias alone, without DAPE on top."""
    return _attend(scaled_scores(q, k) + bias(pe, q, causal=causal, features=features), v, causal=causal)


def sdpa(
    q: Float[Tensor, "b h t d"], k: Float[Tensor, "b h t d"], v: Float[Tensor, "b h t d"], pe: object, *, causal: bool
) -> Float[Tensor, "b h t d"]:
    """PyTorch's fused attention without positions: the cost of attention without a bias."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def scaled_scores(q: Tensor, k: Tensor) -> Float[Tensor, "b h t t"]:
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


def bias(
    pe: Dape | AdditiveBias, q: Tensor, *, causal: bool, features: Float[Tensor, "b t n"] | None = None
) -> Float[Tensor, "*b h t t"]:
    base = pe.base if isinstance(pe, Dape) else pe
    assert isinstance(base, AdditiveBias)
    grid = Grid.of_length(q.shape[-2], q.shape[-2], causal=causal, device=q.device)
    return base.bias_on(replace(grid, q_features=features, k_features=features)).to(q.dtype)


def hidden_units(
    scores: Float[Tensor, "b h t t"], bias: Float[Tensor, "*b h t t"], pe: Dape
) -> Float[Tensor, "b t t D"]:
    """The input of f's activation."""
    return _linear(torch.cat([scores, bias.expand_as(scores)], dim=1).permute(0, 2, 3, 1), pe.f.first)


def _linear(x: Tensor, layer: Affine) -> Tensor:
    return F.linear(x, layer.weight.to(x.dtype), None if layer.bias is None else layer.bias.to(x.dtype))


def _attend(logits: Float[Tensor, "b h t t"], v: Tensor, *, causal: bool) -> Float[Tensor, "b h t d"]:
    if causal:
        t = logits.shape[-1]
        future = torch.ones(t, t, dtype=torch.bool, device=logits.device).triu(1)
        logits = logits.masked_fill(future, float("-inf"))
    return torch.softmax(logits, dim=-1) @ v
