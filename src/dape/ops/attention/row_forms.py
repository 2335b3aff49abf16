"""Attention for logits of a :data:`~dape.positional.row_forms.RowForm`, by an engine that has a kernel for it.

An opaque operator for torch.compile, like that of ``lag_tables.py``; autograd carries the gradients of the terms on to
what they were made from.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from dape.ops.attention.engines.base import Call
from dape.ops.attention.engines.catalogue import ENGINES
from dape.ops.attention.engines.row_terms import KINDS, CountTerms, ProductTerms, RowFormTerms
from dape.ops.attention.fused.heads import Relative, entries_of, forward
from dape.ops.attention.memory import LagMemory
from dape.positional.base import PositionalEncoding, accumulation_dtype
from dape.positional.grid import Grid
from dape.positional.row_forms import ContentCount, RelativeProduct, RowForm

RowKernel = Literal["relative products", "content counts"]
KERNELS: dict[type, RowKernel] = {RelativeProduct: "relative products", ContentCount: "content counts"}


def row_form_attention(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    v: Float[Tensor, "b g k e"],
    pe: PositionalEncoding,
    form: RowForm,
    grid: Grid,
    memory: LagMemory | None,
    *,
    engine: str,
) -> Float[Tensor, "b h q e"]:
    """``memory``, kept beside a cache, holds what depends on lags alone from one token to the next."""
    assert grid.offset is not None
    dtype, keys = q.dtype, k.shape[2]
    if isinstance(form, RelativeProduct) and memory is not None and memory.serves(grid, q.shape[2], keys):
        kept, first = memory.tables(pe, keys, q.device, lambda lags: entries_of(form.at(lags, grid)))
        q, second = _two_queries(q, form)
        call = Call(q, k, v, None, None, grid.key_padding_mask, grid.offset)
        return forward(call, Relative(call, second, kept, first))[0].to(dtype)
    q, terms = _terms(q, keys, form, grid)
    kind = next(name for name, of in KINDS.items() if isinstance(terms, of))
    out, _ = _forward(q, k, v, list(terms), grid.key_padding_mask, kind, grid.offset, grid.causal, engine)
    return out.to(dtype)


def _terms(q: Tensor, keys: int, form: RowForm, grid: Grid) -> tuple[Tensor, RowFormTerms]:
    """The queries that meet the keys, and the rest."""
    assert grid.offset is not None
    dtype = accumulation_dtype(q.dtype)
    if isinstance(form, RelativeProduct):
        first, second = _two_queries(q, form)
        lags = (grid.offset + q.shape[2] - 1) - torch.arange(q.shape[2] + keys - 1, device=q.device)
        return first, ProductTerms(second, form.at(lags, grid).to(dtype))
    return q, CountTerms(q.to(dtype) @ form.table.to(dtype))


def _two_queries(q: Tensor, form: RelativeProduct) -> tuple[Tensor, Tensor]:
    q = q.to(accumulation_dtype(q.dtype))
    return q + form.u.to(q.dtype).unsqueeze(1), q + form.v.to(q.dtype).unsqueeze(1)


@torch.library.custom_op("dape::row_form_attention", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Sequence[Tensor],
    key_padding_mask: Tensor | None,
    kind: str,
    offset: int,
    causal: bool,
    engine: str,
) -> tuple[Tensor, Tensor]:
    call = Call(q, k, v, None, None, key_padding_mask, offset if causal else None)
    return ENGINES[engine].forward(call, KINDS[kind](*terms))


@_forward.register_fake
def _(q, k, v, terms, key_padding_mask, kind, offset, causal, engine):
    dtype = accumulation_dtype(q.dtype)
    batch, heads, queries, _ = q.shape
    out = q.new_empty(batch, queries, heads, v.shape[-1], dtype=dtype).transpose(1, 2)
    return out, q.new_empty(batch, heads, queries, 2, dtype=dtype)


@torch.library.custom_op("dape::row_form_attention_backward", mutates_args=())
def _backward(
    grad: Tensor,
    out: Tensor,
    softmax: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Sequence[Tensor],
    key_padding_mask: Tensor | None,
    kind: str,
    offset: int,
    causal: bool,
    engine: str,
) -> list[Tensor]:
    """Gradients of q, k, v and the terms."""
    call = Call(q, k, v, None, None, key_padding_mask, offset if causal else None)
    found = ENGINES[engine].backward(call, KINDS[kind](*terms), grad, out, softmax)
    pairs = zip((*found[:3], *found.terms), (q, k, v, *terms), strict=True)
    return [x.to(like.dtype).contiguous() for x, like in pairs]


@_backward.register_fake
def _(grad, out, softmax, q, k, v, terms, key_padding_mask, kind, offset, causal, engine):
    return [x.new_empty(x.shape) for x in (q, k, v, *terms)]


def _setup_context(ctx, inputs, output) -> None:
    q, k, v, terms, mask, *ctx.rest = inputs
    ctx.save_for_backward(*output, q, k, v, mask, *terms)
    ctx.set_materialize_grads(False)


def _autograd_backward(ctx, grad, _grad_softmax):
    out, softmax, q, k, v, mask, *terms = ctx.saved_tensors
    if grad is None:
        return None, None, None, [None] * len(terms), None, None, None, None, None
    d_q, d_k, d_v, *d_terms = _backward(grad, out, softmax, q, k, v, terms, mask, *ctx.rest)
    return d_q, d_k, d_v, d_terms, None, None, None, None, None


_forward.register_autograd(_autograd_backward, setup_context=_setup_context)
