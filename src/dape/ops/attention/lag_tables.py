"""Attention whose position terms are tables over lags, or functions of a lag's number times a row's number.

Memory is linear in the length. The operator is opaque to torch.compile, so that one graph serves all lengths. Autograd
carries the gradients of the tables to the parameters.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dape.ops.attention.engines.base import Call, LagTerms, OfRowsAndKeys, RampTerms, Tables, empty_outputs
from dape.ops.attention.engines.catalogue import ENGINES
from dape.ops.attention.schemas import schema
from dape.ops.attention.sinks import gradient_of_sinks, with_sinks
from dape.positional.base import accumulation_dtype


def lag_attention(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    v: Float[Tensor, "b g k e"],
    *,
    static: Float[Tensor, "h n"] | Float[Tensor, "2 p h"] | None,
    wa: Float[Tensor, "D h"] | None = None,
    pre: Float[Tensor, "D n"] | Float[Tensor, "2 p D"] | None = None,
    w2: Float[Tensor, "h D"] | None = None,
    table: Float[Tensor, " n"] | None = None,
    rows: Float[Tensor, "#b q"] | None = None,
    kinks: Float[Tensor, " w"] | None = None,
    separable: OfRowsAndKeys | None = None,
    sinks: Float[Tensor, " h"] | None = None,
    key_padding_mask: Bool[Tensor, "b k"] | None,
    offset: int,
    causal: bool,
    engine: str = "blocked",
) -> Float[Tensor, "b h q e"]:
    """Attention with logits ``A + static[lag] + w2 . leaky(wa . A + pre[lag])``. All floating-point inputs get
    gradients.

    ``static`` and ``pre`` start at the largest lag, ``offset + queries - 1``, and go downwards. With ``table``,
    ``rows`` and ``kinks`` they are slopes and levels (:class:`RampTerms`). ``separable`` is added to both. ``sinks.py``
    describes sinks. ``engine`` is a name of ``engines/catalogue.py``.
    """
    # The operator's output is not rounded: the backward pass subtracts it from a number nearly as large.
    of = separable or (None, None)
    out, _ = _forward(
        q, k, v, static, wa, pre, w2, table, rows, *of, sinks, kinks, key_padding_mask, offset, causal, engine
    )
    return out.to(q.dtype)


class _Given(NamedTuple):
    """The arguments of the operator, which takes only tensors and plain values."""

    q: Tensor
    k: Tensor
    v: Tensor
    static: Tensor | None
    wa: Tensor | None
    pre: Tensor | None
    w2: Tensor | None
    table: Tensor | None
    rows: Tensor | None
    of_rows: Tensor | None
    of_keys: Tensor | None
    sinks: Tensor | None
    kinks: Tensor | None
    key_padding_mask: Tensor | None
    offset: int
    causal: bool
    engine: str

    def call(self, sinks: Tensor | None = None) -> Call:
        both = self.of_rows is not None and self.of_keys is not None
        separable = OfRowsAndKeys(self.of_rows, self.of_keys) if both else None  # pyright: ignore[reportArgumentType]
        offset = self.offset if self.causal else None
        return Call(self.q, self.k, self.v, self.wa, self.w2, self.key_padding_mask, offset, separable, sinks)

    def terms(self, *, learns_static: bool = False) -> Tables:
        if self.table is None:
            return LagTerms(self.static, self.pre, learns_static)
        assert self.static is not None and self.rows is not None and self.kinks is not None
        return RampTerms(self.static, self.pre, self.table, self.rows, self.kinks)

    def learned(self, *, learns_static: bool) -> list[Tensor | None]:
        """The inputs beside q, k and v that have a gradient."""
        static = self.static if learns_static else None
        return [static, self.wa, self.pre, self.w2, self.table, self.rows, self.of_rows, self.of_keys]


@torch.library.custom_op("dape::lag_attention", mutates_args=(), schema=schema(_Given, "(Tensor, Tensor)"))
def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    given = _Given(*arguments)
    return with_sinks(*ENGINES[given.engine].forward(given.call(), given.terms()), given.sinks)


@_forward.register_fake
def _(*arguments):
    given = _Given(*arguments)
    out, softmax = empty_outputs(given.q, given.v, accumulation_dtype(given.q.dtype))
    return (out if ENGINES[given.engine].heads_beside else out.new_empty(out.shape)), softmax


_GRADIENTS = "(" + ", ".join(["Tensor"] * 11) + ")"


@torch.library.custom_op(
    "dape::lag_attention_backward",
    mutates_args=(),
    schema=schema(_Given, _GRADIENTS, "Tensor grad, Tensor out, Tensor softmax", "bool learns_static"),
)
def _backward(grad: Tensor, out: Tensor, softmax: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """Gradients of q, k, v, static, wa, pre, w2, table, rows, of_rows and of_keys; an empty tensor stands for an absent
    input's, and for that of a static table nobody asks for (ALiBi's has nothing to learn)."""
    *inputs, learns_static = arguments
    given = _Given(*inputs)
    engine, terms = ENGINES[given.engine], given.terms(learns_static=learns_static)
    found = engine.backward(given.call(given.sinks), terms, grad, out, softmax)
    d_static, d_pre, *of_ramps = found.terms
    others = (*(of_ramps or (None, None)), *(found.separable or (None, None)))
    grads = (*found[:3], d_static, found.wa, d_pre, found.w2, *others)
    wanted = (given.q, given.k, given.v, *given.learned(learns_static=learns_static))
    d_q, d_k, d_v, *others = (
        given.q.new_empty(0) if x is None or t is None else t.to(x.dtype) for t, x in zip(grads, wanted, strict=True)
    )
    return (*(_as_announced(x, given.engine) for x in (d_q, d_k, d_v)), *(x.contiguous() for x in others))


def _as_announced(x: Float[Tensor, "b h t d"], engine: str) -> Float[Tensor, "b h t d"]:
    """The gradient in the layout that the fake operator announces."""
    beside = ENGINES[engine].gradient_heads_beside
    return x.transpose(1, 2).contiguous().transpose(1, 2) if beside else x.contiguous()


@_backward.register_fake
def _(grad, out, softmax, *arguments):
    *inputs, learns_static = arguments
    given = _Given(*inputs)
    learned = given.learned(learns_static=learns_static)
    tables = (given.q.new_empty(0) if x is None else x.new_empty(x.shape) for x in learned)
    announced = (_as_announced(x.new_empty(x.shape), given.engine) for x in (given.q, given.k, given.v))
    return (*announced, *tables)


def _setup_context(ctx, inputs, output) -> None:
    *tensors, ctx.offset, ctx.causal, ctx.engine = inputs
    ctx.save_for_backward(*output, *tensors)
    ctx.set_materialize_grads(False)


_STATIC = 3
"""Index of the argument ``static``."""


def _autograd_backward(ctx, grad, _grad_softmax):
    out, softmax, *tensors, sinks, kinks, mask = ctx.saved_tensors
    if grad is None:
        return (None,) * (len(tensors) + 6)
    asked = ctx.needs_input_grad[: len(tensors)]
    rest = (sinks, kinks, mask, ctx.offset, ctx.causal, ctx.engine, asked[_STATIC])
    grads = _backward(grad, out, softmax, *tensors, *rest)
    present = [g if needed else None for g, needed in zip(grads, asked, strict=True)]
    d_sinks = None if sinks is None else gradient_of_sinks(grad, out, softmax, sinks)
    return (*present, d_sinks, None, None, None, None, None)  # kinks and the mask have no gradient


_forward.register_autograd(_autograd_backward, setup_context=_setup_context)
