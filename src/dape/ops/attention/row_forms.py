"""Attention for logits of a :data:`~dape.positional.row_forms.RowForm`, by an engine that has a kernel for it.

The operator is opaque to torch.compile, like that of ``lag_tables.py``. Autograd carries the gradients of the terms to
the parameters.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import conv1d

from dape.ops.attention.engines.base import Call, empty_outputs
from dape.ops.attention.engines.catalogue import ENGINES
from dape.ops.attention.engines.row_terms import KINDS, ConvolutionTerms, CountTerms, ProductTerms, RowFormTerms
from dape.ops.attention.fused.convolved import Convolved, Prepared
from dape.ops.attention.fused.heads import Relative, entries_of
from dape.ops.attention.memory import LagMemory
from dape.ops.attention.schemas import schema
from dape.positional.base import PositionalEncoding, accumulation_dtype
from dape.positional.grid import Grid
from dape.positional.row_forms import ContentCount, KeyConvolution, RelativeProduct, RowForm

RowKernel = Literal["relative products", "content counts", "key convolutions"]
KERNELS: dict[type, RowKernel] = {
    RelativeProduct: "relative products",
    ContentCount: "content counts",
    KeyConvolution: "key convolutions",
}


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
    """``memory``, kept beside a cache, holds the tables over lags from one token to the next."""
    assert grid.offset is not None
    if memory is not None and memory.serves(grid, q.shape[2], k.shape[2]) and not isinstance(form, ContentCount):
        return _decode(q, k, v, pe, form, grid, memory)
    dtype = q.dtype
    q, terms = _terms(q, k.shape[2], form, grid)
    kind = next(name for name, of in KINDS.items() if type(terms) is of)
    out, _ = _forward(q, k, v, list(terms), grid.key_padding_mask, kind, grid.offset, grid.causal, engine)
    return out.to(dtype)


def _decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pe: PositionalEncoding,
    form: RelativeProduct | KeyConvolution,
    grid: Grid,
    memory: LagMemory,
) -> Tensor:
    """Decode with tables that were laid out for earlier tokens. Only the compiled kernels take these forms."""
    dtype, keys = q.dtype, k.shape[2]
    if isinstance(form, RelativeProduct):
        entries, first = memory.tables(pe, keys, q.device, lambda lags: entries_of(form.at(lags, grid)))
        q, second = _two_queries(q, form, grid)
        call = Call(q, k, v, None, None, grid.key_padding_mask, grid.offset)
        kernel = Relative(call, second, entries, first)
    else:
        kept, first = memory.tables(pe, keys, q.device, lambda lags: _kept_tables(form, grid, lags))
        call = Call(q, k, v, None, None, None, grid.offset)
        kernel = Convolved(call, kept[0], _edges(form, kept[1], q.shape[2], keys, first), first)
    out, softmax = empty_outputs(q, v)
    kernel.forward(out, softmax)
    return out.to(dtype)


def _terms(q: Tensor, keys: int, form: RowForm, grid: Grid) -> tuple[Tensor, RowFormTerms]:
    """The queries that are multiplied with the keys, and the other terms."""
    dtype, queries, offset = accumulation_dtype(q.dtype), q.shape[2], grid.offset
    assert offset is not None
    if isinstance(form, ContentCount):
        return q, CountTerms(q.to(dtype) @ form.table.to(dtype))
    lags = (offset + queries - 1) - torch.arange(queries + keys - 1, device=q.device)
    if isinstance(form, RelativeProduct):
        first, second = _two_queries(q, form, grid)
        # A causal row does not see the future: negative lags are not evaluated.
        seen = max(1, min(len(lags), offset + queries)) if grid.causal else len(lags)
        table = torch.nn.functional.pad(form.at(lags[:seen], grid).to(dtype), (0, 0, 0, len(lags) - seen))
        return first, ProductTerms(second, table)
    bias = _wide_bias(form, grid, lags, dtype)
    static, pre = _tables(form, bias, len(lags))
    return q, ConvolutionTerms(static, pre, _edges(form, bias, queries, keys), form.wa.to(dtype), form.w2.to(dtype))


def _two_queries(q: Tensor, form: RelativeProduct, grid: Grid) -> tuple[Tensor, Tensor]:
    """The queries for the keys, and those for the table."""
    q = q.to(accumulation_dtype(q.dtype))
    first = q + form.u.to(q.dtype).unsqueeze(1)
    if form.second is not None:
        return first, form.second(grid).to(q.dtype).expand_as(q)
    return first, q + form.v.to(q.dtype).unsqueeze(1)


# Convolutions of B ---------------------------------------------------------------------------------------------------


def _reach(form: KeyConvolution) -> int:
    return form.wa.shape[-1] // 2


def _wide_bias(
    form: KeyConvolution, grid: Grid, lags: Int[Tensor, " n"], dtype: torch.dtype
) -> Float[Tensor, "h m"] | None:
    """B at the lags and at their neighbours on both sides, which a convolution reads; 0 where the causal mask hides."""
    if form.bias is None:
        return None
    reach = _reach(form)
    before, after = (torch.arange(1, reach + 1, device=lags.device) for _ in range(2))
    wide = torch.cat([lags[:1] + before.flip(0), lags, lags[-1:] - after])
    bias = form.bias(grid.read_lag(wide), causal=grid.causal).to(dtype)
    return torch.where(wide < 0, torch.zeros_like(bias), bias) if grid.causal else bias


def _tables(form: KeyConvolution, bias: Float[Tensor, "h m"] | None, lags: int) -> tuple[Tensor, Tensor]:
    """Static and pre for keys that have all neighbours."""
    b1, b2 = form.b1.unsqueeze(1), form.b2.unsqueeze(1)
    if bias is None or form.wb is None:
        return b2.expand(-1, lags), b1.expand(-1, lags)
    reach = _reach(form)
    pre = conv1d(bias.unsqueeze(0), form.wb.to(bias.dtype)).squeeze(0) + b1
    return bias[:, reach : reach + lags] + b2, pre


def _edges(
    form: KeyConvolution, bias: Float[Tensor, "h m"] | None, queries: int, keys: int, first: int = 0
) -> Float[Tensor, "e D q"]:
    """Pre at the first and last keys, which lack neighbours. ``first``: the entry of the last query and key 0."""
    reach, b1 = _reach(form), form.b1.unsqueeze(1)
    found = []
    for place in range(2 * reach):
        key = place if place < reach else keys - 2 * reach + place  # range(keys) would fix the length of a graph
        if bias is None or form.wb is None or not 0 <= key < keys:
            found.append(b1.expand(-1, queries))
            continue
        exists = [float(0 <= key + tap - reach < keys) for tap in range(2 * reach + 1)]
        part = bias[:, first + key : first + key + queries + 2 * reach]
        of_rows = conv1d(part.unsqueeze(0), form.wb.to(bias.dtype) * bias.new_tensor(exists)).squeeze(0)
        found.append(of_rows.flip(1) + b1)
    return torch.stack(found) if found else b1.new_zeros(0, len(b1), queries)


def _kept_tables(
    form: KeyConvolution, grid: Grid, lags: Int[Tensor, " n"]
) -> tuple[Prepared, Float[Tensor, "h m"] | None]:
    bias = _wide_bias(form, grid, lags, torch.float32)
    return Prepared.of(*_tables(form, bias, len(lags)), form.wa, form.w2), bias


# The operator --------------------------------------------------------------------------------------------------------


class _Given(NamedTuple):
    """The arguments of the operator."""

    q: Tensor
    k: Tensor
    v: Tensor
    terms: Sequence[Tensor]
    key_padding_mask: Tensor | None
    kind: str
    offset: int
    causal: bool
    engine: str

    def call(self) -> Call:
        return Call(self.q, self.k, self.v, None, None, self.key_padding_mask, self.offset if self.causal else None)


@torch.library.custom_op("dape::row_form_attention", mutates_args=(), schema=schema(_Given, "(Tensor, Tensor)"))
def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    given = _Given(*arguments)
    return ENGINES[given.engine].forward(given.call(), KINDS[given.kind](*given.terms))


@_forward.register_fake
def _(*arguments):
    given = _Given(*arguments)
    return empty_outputs(given.q, given.v, accumulation_dtype(given.q.dtype))


@torch.library.custom_op(
    "dape::row_form_attention_backward",
    mutates_args=(),
    schema=schema(_Given, "Tensor[]", "Tensor grad, Tensor out, Tensor softmax"),
)
def _backward(grad: Tensor, out: Tensor, softmax: Tensor, *arguments: Any) -> list[Tensor]:
    """Gradients of q, k, v and the terms."""
    given = _Given(*arguments)
    found = ENGINES[given.engine].backward(given.call(), KINDS[given.kind](*given.terms), grad, out, softmax)
    pairs = zip((*found[:3], *found.terms), (*given[:3], *given.terms), strict=True)
    return [x.to(like.dtype).contiguous() for x, like in pairs]


@_backward.register_fake
def _(grad, out, softmax, *arguments):
    given = _Given(*arguments)
    return [x.new_empty(x.shape) for x in (*given[:3], *given.terms)]


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
