"""The Triton kernels for position terms that are tables over lags."""

import torch
from jaxtyping import Float
from torch import Tensor

from dape.ops.attention.lag_call import LagCall
from dape.ops.attention.triton_kernels.plan import padded
from dape.ops.attention.triton_kernels.run import LOG2_E, Attention, Terms, outputs


def forward(call: LagCall) -> tuple[Float[Tensor, "b h q e"], Float[Tensor, "b h q"]]:
    out, lse = outputs(call.q, call.v)
    _attention(call).forward(_terms(call), out, lse, slice(0, call.queries))
    return out, lse


def backward(grad: Tensor, out: Tensor, lse: Tensor, call: LagCall) -> tuple[Tensor | None, ...]:
    """Gradients of q, k, v, static, wa, pre, w2 in float32; None for an absent input's."""
    found = _attention(call).backward(grad, out, lse)
    d_static, d_pre = found.rows(_terms(call), slice(0, call.queries))
    d_wa, d_w2 = (None, None) if call.wa is None else (found.d_wa, found.d_w2)
    return found.d_q, found.d_k, found.d_v, None if call.static is None else d_static, d_wa, d_pre, d_w2


def _attention(call: LagCall) -> Attention:
    q, k, v, padding = call.q, call.k, call.v, call.key_padding_mask
    return Attention(q, k, v, call.wa, call.w2, causal_offset=call.causal_offset, key_padding_mask=padding)


def _terms(call: LagCall) -> Terms:
    static, pre = call.static, call.pre
    if static is not None:
        static = (static.float() * LOG2_E).contiguous()
    if pre is not None:
        pre = torch.nn.functional.pad(pre.float(), (0, 0, 0, padded(len(pre)) - len(pre))).t().contiguous()
    return Terms(tables=True, static=static, pre=pre, start=call.queries - 1)
