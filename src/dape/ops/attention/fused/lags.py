"""The compiled kernel for position terms that are tables over lags; the arguments are those of ``lag_tables.py``."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from dape.ops.attention.fused.run import LOG2_E, Attention, Mixer, Term, Terms, outputs


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    static: Tensor | None,
    wa: Tensor | None,
    pre: Tensor | None,
    w2: Tensor | None,
    key_padding_mask: Tensor | None,
    offset: int,
    causal: bool,
) -> tuple[Float[Tensor, "b h q e"], Float[Tensor, "b h q"]]:
    attention = _attention(q, k, v, wa, w2, key_padding_mask, offset, causal)
    out, lse = outputs(q, v)
    attention.forward(_terms(q, k, static, pre, offset, causal), out, lse)
    return out.to(q.dtype), lse


def backward(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    static: Tensor | None,
    wa: Tensor | None,
    pre: Tensor | None,
    w2: Tensor | None,
    key_padding_mask: Tensor | None,
    offset: int,
    causal: bool,
) -> tuple[Tensor | None, ...]:
    """Gradients of q, k, v, static, wa, pre, w2 in float32; None for an absent input's."""
    attention = _attention(q, k, v, wa, w2, key_padding_mask, offset, causal)
    found = attention.backward(grad, out, lse)
    d_static, d_pre = found.rows(_terms(q, k, static, pre, offset, causal))
    d_wa, d_w2 = (None, None) if wa is None else (found.d_wa, found.d_w2)
    return found.d_q, found.d_k, found.d_v, None if static is None else d_static, d_wa, d_pre, d_w2


def _attention(q, k, v, wa, w2, key_padding_mask, offset: int, causal: bool) -> Attention:
    mixer = None if wa is None else Mixer(wa, w2)
    return Attention(q, k, v, mixer, causal_offset=offset if causal else None, key_padding_mask=key_padding_mask)


def _terms(q: Tensor, k: Tensor, static: Tensor | None, pre: Tensor | None, offset: int, causal: bool) -> Terms:
    heads, queries, lags = q.shape[1], q.shape[2], q.shape[2] + k.shape[2] - 1
    fixed = torch.zeros(heads, lags) if static is None else static.float() * LOG2_E
    if causal:
        fixed[:, max(0, offset + queries) :] = -math.inf
    return Terms(Term.by_lag(fixed, queries), None if pre is None else Term.by_lag(pre, queries))
