"""The Triton kernels for position terms that are tables over lags; the arguments are those of ``lag_tables.py``."""

import torch
from jaxtyping import Float
from torch import Tensor

from dape.ops.attention.triton_kernels.plan import padded
from dape.ops.attention.triton_kernels.run import LOG2_E, Attention, Terms, outputs


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
    attention.forward(_terms(q, static, pre), out, lse, slice(0, q.shape[2]))
    return out, lse


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
    d_static, d_pre = found.rows(_terms(q, static, pre), slice(0, q.shape[2]))
    d_wa, d_w2 = (None, None) if wa is None else (found.d_wa, found.d_w2)
    return found.d_q, found.d_k, found.d_v, None if static is None else d_static, d_wa, d_pre, d_w2


def _attention(q, k, v, wa, w2, key_padding_mask, offset: int, causal: bool) -> Attention:
    causal_offset = offset if causal else None
    return Attention(q, k, v, wa, w2, causal_offset=causal_offset, key_padding_mask=key_padding_mask)


def _terms(q: Tensor, static: Tensor | None, pre: Tensor | None) -> Terms:
    if static is not None:
        static = (static.float() * LOG2_E).contiguous()
    if pre is not None:
        pre = torch.nn.functional.pad(pre.float(), (0, 0, 0, padded(len(pre)) - len(pre))).t().contiguous()
    return Terms(tables=True, static=static, pre=pre, start=q.shape[2] - 1)
