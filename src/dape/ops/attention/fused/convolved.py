"""Calls of ``convolved.cpp``, the kernel for an f of two convolutions over neighbouring keys."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from dape.ops.attention.engines.base import Call, Found
from dape.ops.attention.engines.row_terms import ConvolutionTerms
from dape.ops.attention.fused import library
from dape.ops.attention.fused.heads import Gradients, fields, laid_out
from dape.ops.attention.fused.kinds import ConvolvedBackward, ConvolvedCall, run
from dape.ops.attention.fused.library import View, padded
from dape.ops.attention.fused.run import LOG2_E

PAST = 16
"""Entries before the first one that ``convolved.cpp`` may read."""
MOST_TAPS = 7


@dataclass(frozen=True)
class Table:
    """A table over lags, from the largest downwards, with spare entries on both sides."""

    data: Float[Tensor, "c m"]
    lags: int

    @classmethod
    def of(cls, table: Float[Tensor, "c n"]) -> "Table":
        room = library.block() + library.lanes()
        return cls(pad(table.float(), (PAST, room)).contiguous(), table.shape[1])

    def view(self, start: int, data: Tensor | None = None) -> View:
        """A view of the table, or of sums laid out like it; ``start``: the entry of row 0 and key 0."""
        at = (self.data if data is None else data).data_ptr() + 4 * (PAST + start)
        return View(at, 0, self.data.stride(0), -1)

    def total(self, sums: Float[Tensor, "t c m"]) -> Float[Tensor, "c n"]:
        return sums.sum(0)[:, PAST : PAST + self.lags]


class Weights:
    """The weights of both convolutions as the kernel reads them: scaled for base 2, and unscaled for gradients."""

    def __init__(self, wa: Float[Tensor, "D h t"], w2: Float[Tensor, "h D t"]) -> None:
        wa, w2 = wa.float(), w2.float()
        self.hidden, self.heads, self.taps = wa.shape
        self.wa = (wa / LOG2_E).transpose(1, 2).contiguous()
        self.w2 = (w2 * LOG2_E).permute(2, 0, 1).contiguous()
        self.wa_back, self.w2_back = wa.permute(2, 1, 0).contiguous(), w2.permute(1, 2, 0).contiguous()


@dataclass(frozen=True)
class Prepared:
    """Everything a call reads beside q, k and v. Tables may have more lags than it needs."""

    fixed: Table
    pre: Table
    weights: Weights

    @classmethod
    def of(cls, static: Tensor, pre: Tensor, wa: Tensor, w2: Tensor) -> "Prepared":
        return cls(Table.of(static * LOG2_E), Table.of(pre), Weights(wa, w2))


class Convolved:
    def __init__(self, call: Call, prepared: Prepared, edges: Float[Tensor, "e D q"], first: int = 0) -> None:
        """``first`` is the entry of the last query and key 0 in the tables."""
        self.of, self.given = laid_out(call), prepared
        self.edges, self.start = edges.float().contiguous(), first + call.queries - 1

    @classmethod
    def from_terms(cls, call: Call, terms: ConvolutionTerms) -> "Convolved":
        return cls(call, Prepared.of(terms.static, terms.pre, terms.wa, terms.w2), terms.edges)

    def call(self, out: Tensor, softmax: Tensor, *, backward: bool = False) -> ConvolvedCall:
        given, weights = self.given, self.given.weights
        return ConvolvedCall(
            hidden=weights.hidden,
            taps=weights.taps,
            wa=weights.wa.data_ptr(),
            w2=weights.w2.data_ptr(),
            fixed=given.fixed.view(self.start),
            pre=given.pre.view(self.start),
            edges=self.edges.data_ptr(),
            **fields(self.of, out, softmax, backward=backward),
        )

    def forward(self, out: Tensor, softmax: Tensor) -> None:
        call = self.call(out, softmax)
        call.splits = self.of._splits()
        batch, heads, queries, _ = self.of.q_shape
        # For each part of the keys: the output so far, the largest logit and the sum of weights.
        room = batch * call.splits * heads * queries * (padded(self.of.value_width) + 2) if self.of.few_rows else 0
        parts = library.empty(room)
        call.parts = parts.data_ptr()
        run("convolved", "forward", call)

    def backward(self, grad: Tensor, out: Tensor, softmax: Tensor) -> Found:
        sums = Gradients(self.of, grad, out, softmax, shares=1)
        given, weights, threads = self.given, self.given.weights, self.of.threads
        d_fixed, d_pre, d_edges = (
            library.zeros(threads, *x.shape) for x in (given.fixed.data, given.pre.data, self.edges)
        )
        d_wa = library.zeros(threads, weights.taps, weights.hidden, weights.heads)
        d_w2 = library.zeros(threads, weights.taps, weights.heads, weights.hidden)
        backward = ConvolvedBackward(
            wa_back=weights.wa_back.data_ptr(),
            w2_back=weights.w2_back.data_ptr(),
            d_fixed=given.fixed.view(self.start, d_fixed).at,
            d_pre=given.pre.view(self.start, d_pre).at,
            d_edges=d_edges.data_ptr(),
            fixed_span=d_fixed[0].numel(),
            pre_span=d_pre[0].numel(),
            edges_span=d_edges[0].numel(),
            d_wa=d_wa.data_ptr(),
            d_w2=d_w2.data_ptr(),
            **sums.fields(),
        )
        run("convolved", "backward", self.call(out, softmax, backward=True), backward)
        return sums.found(
            given.fixed.total(d_fixed),
            given.pre.total(d_pre),
            d_edges.sum(0),
            d_wa.sum(0).permute(1, 2, 0) / LOG2_E,  # scores were in base 2
            d_w2.sum(0).permute(1, 2, 0),
        )
