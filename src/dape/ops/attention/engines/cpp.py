"""The engine of the C++ kernels in ``fused``: CPU, float32."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dape.ops.attention.engines.base import (
    Call,
    Found,
    KernelEngine,
    OfRowsAndKeys,
    RampTerms,
    RowBlock,
    RowTerms,
    Tables,
    Verdict,
    empty_outputs,
)
from dape.ops.attention.engines.row_terms import CountTerms, ProductTerms, RowFormTerms
from dape.ops.attention.fused import library
from dape.ops.attention.fused.available import why_not_built, why_not_compiled
from dape.ops.attention.fused.convolved import MOST_TAPS, Convolved
from dape.ops.attention.fused.heads import Counted, Relative, entries_of
from dape.ops.attention.fused.run import LOG2_E, AnyTerms, Attention, Mixer, Ramps, SharedRamps, Term, Terms
from dape.ops.attention.tiles import TileTerms
from dape.positional.base import ScoreForm
from dape.positional.grid import Grid
from dape.positional.row_forms import ContentCount, KeyConvolution, RelativeProduct, RowForm

KIND_OF = {RelativeProduct: "relative", ContentCount: "counted", KeyConvolution: "convolved"}


class Cpp(KernelEngine):
    name = "fused"
    heads_beside = gradient_heads_beside = True
    block_bytes = 24 << 20
    fewest_rows = 16
    takes_ramps = takes_separable = takes_sinks = True

    def serves(self, device: torch.device) -> bool:
        return True

    def judge(self, q: Tensor, k: Tensor, v: Tensor, grid: Grid, form: ScoreForm, *, tables: bool) -> Verdict:
        return Verdict.against(why_not_compiled(q))

    def judge_rows(self, q: Tensor, k: Tensor, v: Tensor, grid: Grid, form: RowForm) -> Verdict:
        if grid.offset is None or grid.q_document is not None:
            return Verdict(False, "several documents, or positions that are not one consecutive run")
        if isinstance(form, KeyConvolution) and grid.key_padding_mask is not None:
            return Verdict(False, "convolutions over keys would have gaps where keys are padding")
        if isinstance(form, KeyConvolution) and form.wa.shape[-1] > MOST_TAPS:
            return Verdict(False, f"the compiled kernel convolves at most {MOST_TAPS} keys, not {form.wa.shape[-1]}")
        return Verdict.against(why_not_compiled(q) or why_not_built(KIND_OF[type(form)]))

    def forward(self, call: Call, terms: Tables | RowTerms | RowFormTerms) -> tuple[Tensor, Tensor]:
        if isinstance(terms, RowFormTerms):
            out, softmax = empty_outputs(call.q, call.v)
            _kernel_of(call, terms).forward(out, softmax)
            return out, softmax
        return super().forward(call, terms)

    def backward(
        self, call: Call, terms: Tables | RowTerms | RowFormTerms, grad: Tensor, out: Tensor, softmax: Tensor
    ) -> Found:
        if isinstance(terms, RowFormTerms):
            return _kernel_of(call, terms).backward(grad, out, softmax)
        return super().backward(call, terms, grad, out, softmax)

    def attention(self, call: Call) -> Attention:
        mixer = None if call.wa is None or call.w2 is None else Mixer(call.wa, call.w2)
        return Attention(
            call.q,
            call.k,
            call.v,
            mixer,
            causal_offset=call.causal_offset,
            key_padding_mask=call.key_padding_mask,
            separable=call.separable,
        )

    def tables(self, attention: Attention, call: Call, terms: Tables) -> AnyTerms:
        if isinstance(terms, RampTerms):
            ramps = Ramps.of(terms.table, terms.kinks, terms.static, terms.pre).on_rows(terms.rows, 0)
            size = (call.queries, call.keys)
            if attention.few_rows or not SharedRamps.pay(ramps, len(call.q), *size):
                return ramps
            return SharedRamps(ramps, *size, call.causal_offset)
        lags = call.queries + call.keys - 1
        own = laid_out(terms.static, terms.pre, call.q.shape[1], lags, call.first_hidden)
        learns = terms.static is not None and terms.learns_static
        return own.from_largest_lag(0, call.queries, learns_fixed=learns)

    def cells(self, attention: Attention, call: Call, terms: TileTerms, block: RowBlock) -> Terms:
        static = library.zeros(1, 1, 1, 1) if terms.static is None else terms.static
        fixed = Term.by_cell(static.expand(call.q.shape[1], -1, block.rows, block.keys), -math.inf)
        if terms.pre is None:
            return Terms(fixed, None)
        return Terms(fixed, Term.by_cell(terms.pre.expand(-1, -1, block.rows, block.keys), 0.0))


def _kernel_of(call: Call, terms: RowFormTerms) -> Relative | Counted | Convolved:
    if isinstance(terms, ProductTerms):
        return Relative(call, terms.second, entries_of(terms.table))
    return Counted(call, terms.z) if isinstance(terms, CountTerms) else Convolved.from_terms(call, terms)


@dataclass(frozen=True)
class Prepared:
    """Tables laid out once for many calls, with more lags than one call needs."""

    terms: Terms | Ramps
    mixer: Mixer | None

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_padding_mask: Tensor | None,
        first: int,
        rows: Float[Tensor, "#b q"] | None,
        separable: OfRowsAndKeys | None,
    ) -> Float[Tensor, "b h q e"]:
        """Attention of queries that are the last keys. ``first`` is the entry for key 0 and the last query; ``rows``
        are those of ramps."""
        queries, keys = q.shape[2], k.shape[2]
        given = {"key_padding_mask": key_padding_mask, "separable": separable}
        attention = Attention(q, k, v, self.mixer, causal_offset=keys - queries, **given)
        out, softmax = empty_outputs(q, v)
        if isinstance(self.terms, Ramps):
            assert rows is not None
            terms = self.terms.on_rows(rows, first)
        else:
            terms = self.terms.from_largest_lag(first, queries)
        attention.forward(terms, out, softmax, RowBlock(0, queries, keys))
        return out.to(q.dtype)


def laid_out(static: Tensor | None, pre: Tensor | None, heads: int, lags: int, hidden_from: int | None) -> Terms:
    """Tables over lags in the kernel's layout. The causal mask hides entries from ``hidden_from`` on."""
    fixed = library.zeros(heads, lags) if static is None else static.float() * LOG2_E
    if hidden_from is not None:
        fixed[:, hidden_from:] = -math.inf
    return Terms(Term.by_lag(fixed), None if pre is None else Term.by_lag(pre))
