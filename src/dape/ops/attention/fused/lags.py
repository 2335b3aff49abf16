"""The compiled kernel for position terms that are tables over lags."""

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from dape.ops.attention.fused import library
from dape.ops.attention.fused.run import LOG2_E, Attention, Mixer, Term, Terms, outputs
from dape.ops.attention.lag_call import LagCall


def forward(call: LagCall) -> tuple[Float[Tensor, "b h q e"], Float[Tensor, "b h q 2"]]:
    out, softmax = outputs(call.q, call.v)
    _attention(call).forward(_terms(call), out, softmax)
    return out, softmax


@dataclass(frozen=True)
class Prepared:
    """Tables that reach further than a call needs, laid out for the kernel once for many calls."""

    terms: Terms
    mixer: Mixer | None

    @classmethod
    def of(
        cls,
        static: Tensor | None,
        pre: Tensor | None,
        wa: Tensor | None,
        w2: Tensor | None,
        heads: int,
        lags: int,
        hidden_from: int,
    ) -> "Prepared":
        return cls(
            _laid_out(static, pre, heads, lags, hidden_from), None if wa is None or w2 is None else Mixer(wa, w2)
        )

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None, first: int
    ) -> Float[Tensor, "b h q e"]:
        """Queries that are the last of the keys; ``first``: the entry for key 0 and the last query."""
        queries, offset = q.shape[2], k.shape[2] - q.shape[2]
        attention = Attention(q, k, v, self.mixer, causal_offset=offset, key_padding_mask=key_padding_mask)
        out, softmax = outputs(q, v)
        attention.forward(self.terms.from_largest_lag(first, queries), out, softmax)
        return out.to(q.dtype)


def backward(grad: Tensor, out: Tensor, softmax: Tensor, call: LagCall) -> tuple[Tensor | None, ...]:
    """Gradients of q, k, v, static, wa, pre, w2 in float32; None for an absent input's."""
    found = _attention(call).backward(grad, out, softmax)
    d_static, d_pre = found.rows(_terms(call), with_fixed=call.static is not None and call.learns_static)
    d_wa, d_w2 = (None, None) if call.wa is None else (found.d_wa, found.d_w2)
    return found.d_q, found.d_k, found.d_v, d_static, d_wa, d_pre, d_w2


def _attention(call: LagCall) -> Attention:
    mixer = None if call.wa is None or call.w2 is None else Mixer(call.wa, call.w2)
    padding = call.key_padding_mask
    return Attention(call.q, call.k, call.v, mixer, causal_offset=call.causal_offset, key_padding_mask=padding)


def _terms(call: LagCall) -> Terms:
    hidden_from = max(0, call.offset + call.queries) if call.causal else None
    laid_out = _laid_out(call.static, call.pre, call.q.shape[1], call.lags, hidden_from)
    return laid_out.from_largest_lag(0, call.queries)


def _laid_out(static: Tensor | None, pre: Tensor | None, heads: int, lags: int, hidden_from: int | None) -> Terms:
    fixed = library.zeros(heads, lags) if static is None else static.float() * LOG2_E
    if hidden_from is not None:
        fixed[:, hidden_from:] = -math.inf
    return Terms(Term.by_lag(fixed), None if pre is None else Term.by_lag(pre))
