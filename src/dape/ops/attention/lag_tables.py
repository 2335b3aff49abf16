"""Attention whose position terms are tables over lags: memory linear in the length.

An opaque operator for torch.compile, so that one graph serves all lengths; autograd carries the gradients of the tables
on to the parameters they were made from.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dape.ops.attention.engines.base import Call, LagTerms
from dape.ops.attention.engines.catalogue import ENGINES
from dape.positional.base import accumulation_dtype


def lag_attention(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    v: Float[Tensor, "b g k e"],
    *,
    static: Float[Tensor, "h n"] | None,
    wa: Float[Tensor, "D h"] | None = None,
    pre: Float[Tensor, "D n"] | None = None,
    w2: Float[Tensor, "h D"] | None = None,
    key_padding_mask: Bool[Tensor, "b k"] | None,
    offset: int,
    causal: bool,
    engine: str = "blocked",
) -> Float[Tensor, "b h q e"]:
    """``A + static[lag] + w2 . leaky(wa . A + pre[lag])``; differentiable in every floating-point input.

    ``static`` and ``pre`` run from the largest lag, ``offset + queries - 1``, downwards. ``engine``: a name from
    ``engines/catalogue.py``.
    """
    # The operator keeps its output as computed: the backward pass takes a difference in which rounding would show.
    return _forward(q, k, v, static, wa, pre, w2, key_padding_mask, offset, causal, engine)[0].to(q.dtype)


@torch.library.custom_op("dape::lag_attention", mutates_args=())
def _forward(
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
    engine: str,
) -> tuple[Tensor, Tensor]:
    call = Call(q, k, v, wa, w2, key_padding_mask, offset if causal else None)
    return ENGINES[engine].forward(call, LagTerms(static, pre))


@_forward.register_fake
def _(q, k, v, static, wa, pre, w2, key_padding_mask, offset, causal, engine):
    dtype = accumulation_dtype(q.dtype)
    batch, heads, queries, _ = q.shape
    softmax = q.new_empty(batch, heads, queries, 2, dtype=dtype)
    if ENGINES[engine].heads_beside:
        return q.new_empty(batch, queries, heads, v.shape[-1], dtype=dtype).transpose(1, 2), softmax
    return q.new_empty(*q.shape[:-1], v.shape[-1], dtype=dtype), softmax


@torch.library.custom_op("dape::lag_attention_backward", mutates_args=())
def _backward(
    grad: Tensor,
    out: Tensor,
    softmax: Tensor,
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
    engine: str,
    learns_static: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, static, wa, pre, w2; an empty tensor stands for an absent input's, and for that of a static
    table nobody asks for (ALiBi's has nothing to learn)."""
    call = Call(q, k, v, wa, w2, key_padding_mask, offset if causal else None)
    found = ENGINES[engine].backward(call, LagTerms(static, pre, learns_static), grad, out, softmax)
    wanted = (q, k, v, static if learns_static else None, wa, pre, w2)
    grads = (*found[:3], found.terms[0], found.wa, found.terms[1], found.w2)
    d_q, d_k, d_v, d_static, d_wa, d_pre, d_w2 = (
        q.new_empty(0) if x is None or t is None else t.to(x.dtype) for t, x in zip(grads, wanted, strict=True)
    )
    d_q, d_k, d_v = (_as_announced(x, engine) for x in (d_q, d_k, d_v))
    return d_q, d_k, d_v, d_static.contiguous(), d_wa.contiguous(), d_pre.contiguous(), d_w2.contiguous()


def _as_announced(x: Float[Tensor, "b h t d"], engine: str) -> Float[Tensor, "b h t d"]:
    """A layout that can be known beforehand."""
    beside = ENGINES[engine].gradient_heads_beside
    return x.transpose(1, 2).contiguous().transpose(1, 2) if beside else x.contiguous()


@_backward.register_fake
def _(grad, out, softmax, q, k, v, static, wa, pre, w2, key_padding_mask, offset, causal, engine, learns_static):
    learned = (static if learns_static else None, wa, pre, w2)
    tables = (q.new_empty(0) if t is None else t.new_empty(t.shape) for t in learned)
    return (*(_as_announced(x.new_empty(x.shape), engine) for x in (q, k, v)), *tables)


def _setup_context(ctx, inputs, output) -> None:
    *tensors, ctx.offset, ctx.causal, ctx.engine = inputs
    ctx.save_for_backward(*output, *tensors)
    ctx.set_materialize_grads(False)


_STATIC = 3  # of the arguments


def _autograd_backward(ctx, grad, _grad_softmax):
    out, softmax, *tensors = ctx.saved_tensors
    if grad is None:
        return (None,) * (len(tensors) + 3)
    asked = ctx.needs_input_grad[: len(tensors) - 1]
    grads = _backward(grad, out, softmax, *tensors, ctx.offset, ctx.causal, ctx.engine, asked[_STATIC])
    present = [g if needed else None for g, needed in zip(grads, asked, strict=True)]
    return (*present, None, None, None, None)


_forward.register_autograd(_autograd_backward, setup_context=_setup_context)
