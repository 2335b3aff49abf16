"""The definition: the whole score matrix, in the order scores, encoding, mask, softmax, values."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dape.positional.base import PositionalEncoding, accumulation_dtype, share_heads
from dape.positional.grid import Grid


def reference_attention(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    v: Float[Tensor, "b g k e"],
    pe: PositionalEncoding,
    grid: Grid,
) -> Float[Tensor, "b h q e"]:
    """The definition, for q and k that are already rotated. Half precision is computed in float32."""
    logits = pe.logits(scaled_scores(q, k), q, k, grid)
    weights = masked_softmax(logits, grid.visible(), pe.sinks())
    return (weights @ share_heads(v, q.shape[1]).to(weights.dtype)).to(q.dtype)


def scaled_scores(q: Float[Tensor, "b h q d"], k: Float[Tensor, "b g k d"]) -> Float[Tensor, "b h q k"]:
    dtype = accumulation_dtype(q.dtype)
    keys = share_heads(k, q.shape[1]).to(dtype)
    return (q.to(dtype) / math.sqrt(q.shape[-1])) @ keys.transpose(-1, -2)


def masked_softmax(
    logits: Float[Tensor, "b h q k"], visible: Bool[Tensor, "*b #q k"] | None, sinks: Float[Tensor, " h"] | None = None
) -> Float[Tensor, "b h q k"]:
    """Softmax over visible keys. Rows that see no key are zeros, with zero gradients. A sink is one more key, whose
    weight is dropped."""
    hidden = None if visible is None else ~visible.unsqueeze(-3)
    if hidden is not None:
        logits = logits.masked_fill(hidden, torch.finfo(logits.dtype).min)
    if sinks is None:
        weights = logits.softmax(-1)
    else:
        column = sinks.to(logits.dtype).view(-1, 1, 1).expand(*logits.shape[:-1], 1)
        weights = torch.cat([logits, column], dim=-1).softmax(-1)[..., :-1]
    return weights if hidden is None else weights.masked_fill(hidden, 0.0)


def zero_output(q: Float[Tensor, "b h q d"], v: Float[Tensor, "b g k e"]) -> Float[Tensor, "b h q e"]:
    """Zeros, the output of rows without keys. They depend on q in the graph, with zero gradients."""
    everywhere = torch.ones((), dtype=torch.bool, device=q.device)
    return q[..., :1].masked_fill(everywhere, 0.0).expand(*q.shape[:-1], v.shape[-1])
