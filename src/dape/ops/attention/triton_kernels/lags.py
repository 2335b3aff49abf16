"""The Triton kernels for position terms that are tables over lags."""

import torch
from jaxtyping import Float
from torch import Tensor

from dape.ops.attention.lag_call import LagCall
from dape.ops.attention.triton_kernels.plan import padded
from dape.ops.attention.triton_kernels.run import LOG2_E, Attention, Terms, outputs


def forward(call: LagCall) -> tuple[Float[Tensor, "b h q e"], Float[Tensor, "b h q 2"]]:
    out, softmax = outputs(call.q, call.v)
    attention = _attention(call)
    attention.forward(_terms(call, attention), out, softmax, slice(0, call.queries))
    return out, softmax


def backward(grad: Tensor, out: Tensor, softmax: Tensor, call: LagCall) -> tuple[Tensor | None, ...]:
    """Gradients of q, k, v, static, wa, pre, w2 in float32; None for an absent input's."""
    attention = _attention(call)
    found = attention.backward(grad, out, softmax)
    d_static, d_pre = found.rows(_terms(call, attention), slice(0, call.queries))
    d_wa, d_w2 = (None, None) if call.wa is None else (found.d_wa, found.d_w2)
    return found.d_q, found.d_k, found.d_v, None if call.static is None else d_static, d_wa, d_pre, d_w2


def _attention(call: LagCall) -> Attention:
    q, k, v, padding = call.q, call.k, call.v, call.key_padding_mask
    return Attention(q, k, v, call.wa, call.w2, causal_offset=call.causal_offset, key_padding_mask=padding)


def _terms(call: LagCall, attention: Attention) -> Terms:
    static, pre = None if call.static is None else call.static.float(), call.pre
    if pre is not None:
        of_position = attention.of_position(pre.float())
        static = of_position if static is None else static + of_position
        pre = torch.nn.functional.pad(pre.float(), (0, 0, 0, padded(len(pre)) - len(pre))).t().contiguous()
    if static is not None:
        static = (static * LOG2_E).contiguous()
    return Terms(tables=True, static=static, pre=pre, start=call.queries - 1)
