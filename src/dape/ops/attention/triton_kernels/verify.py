"""The self-check: the kernels on small calls, outputs and the gradients of everything, against the definition.

The definition is computed in float64 on the CPU, where no flag of the GPU reaches it. On the side of the kernels
autograd takes no part: a check may begin within somebody's backward pass, whose thread for the GPU would then wait for
itself.
Nothing here is random: numbers come from a generator of its own.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dape.ops.attention.bounds import bounds, relative_errors, steady_rows
from dape.ops.attention.check import make_grid
from dape.ops.attention.fused.cells import RowBlock
from dape.ops.attention.lag_call import LagCall
from dape.ops.attention.reference import reference_attention
from dape.ops.attention.tiles import TileTerms
from dape.ops.attention.triton_kernels import cells, lags, run
from dape.ops.attention.triton_kernels.shape_class import NAMES, ShapeClass
from dape.positional.base import LEAKY_SLOPE, AttentionDims, PositionalEncoding, share_heads
from dape.positional.grid import Grid

BATCH = 2


@dataclass(frozen=True)
class Case:
    name: str
    queries: int
    keys: int
    gradients: bool
    shared: bool
    """Terms per cell are the same for all items."""
    heads_beside: bool
    """q, k and v are laid out as projections leave them: the heads of a token beside each other."""


def cases() -> list[Case]:
    """Sizes odd in every respect, and whole tiles: triton compiles anew where addresses and strides are multiples of
    16. One row against many keys, as in decoding, is split into parts of the keys; it is checked forward only."""
    return [
        Case("odd sizes", 21, 37, gradients=True, shared=False, heads_beside=True),
        Case("whole tiles", 32, 48, gradients=True, shared=True, heads_beside=False),
        Case("one row", 1, 2 * run.SPLIT_KEYS + 19, gradients=False, shared=True, heads_beside=True),
    ]


@dataclass(frozen=True)
class Finding:
    """One tensor of one case, the worst of it."""

    case: str
    tensor: str
    error: float
    bound: float

    @property
    def ok(self) -> bool:
        return self.error <= self.bound

    def __str__(self) -> str:
        what = "the output" if self.tensor == "output" else f"the gradient of {self.tensor}"
        return f"{what} is off by {self.error:.2g} of its largest entry ({self.case}); {self.bound:.2g} is allowed"


def findings(shape: ShapeClass, device: torch.device) -> list[Finding]:
    """Every tensor of every case. Raises whatever compiling or launching raises."""
    return [finding for number, case in enumerate(cases()) for finding in _compare(shape, case, device, seed=number)]


def _compare(shape: ShapeClass, case: Case, device: torch.device, seed: int) -> Iterator[Finding]:
    example = _Example(shape, case, seed)
    with torch.no_grad():
        found = example.launched(device)
    exact = example.by_definition()
    allowed = bounds(example.dtype, example.terms, tf32=shape.tf32)
    for name, error in relative_errors({n: x.cpu() for n, x in found.items()}, exact).items():
        yield Finding(case.name, name, error, allowed.of(name))


class _Example:
    """The inputs of a case, on the CPU: q, k, v and the gradient of the output rounded to the dtype of the class."""

    def __init__(self, shape: ShapeClass, case: Case, seed: int) -> None:
        self.shape, self.case = shape, case
        self.dtype = next(dtype for dtype, name in NAMES.items() if name == shape.dtype)
        generator = torch.Generator().manual_seed(seed)

        def normal(*size: int, scale: float = 1.0) -> Tensor:
            return torch.randn(size, generator=generator, dtype=torch.float32, device="cpu") * scale

        heads, key_heads, hidden = shape.heads, shape.heads // shape.group, shape.hidden
        self.q = normal(BATCH, heads, case.queries, shape.width).to(self.dtype)
        self.k = normal(BATCH, key_heads, case.keys, shape.width).to(self.dtype)
        self.v = normal(BATCH, key_heads, case.keys, shape.values).to(self.dtype)
        lags = (case.queries + case.keys - 1,)
        of_cells = (case.queries, case.keys)
        items = () if shape.tables else (1 if case.shared else BATCH,)
        where = lags if shape.tables else of_cells
        self.static = normal(*items, heads, *where) if shape.static else None
        self.wa = normal(hidden, heads, scale=heads**-0.5) if hidden else None
        self.pre = normal(*items, hidden, *where) if hidden else None
        self.w2 = normal(heads, hidden, scale=hidden**-0.5) if hidden else None
        self.grid = self._grid()
        towards = normal(BATCH, heads, case.queries, shape.values).to(self.dtype)
        self.towards = towards * self._steady_rows().to(self.dtype)

    @property
    def terms(self) -> int:
        """Of all sums that an output or a gradient goes through."""
        shape = self.shape
        return shape.width + shape.values + shape.heads + shape.hidden + self.case.keys + BATCH * self.case.queries

    def _grid(self) -> Grid:
        """The queries are the last of the keys. Terms per cell without a causal mask hide documents from each other,
        one for each item, and a row from everything."""
        shape, keys, documents = self.shape, torch.arange(self.case.keys, device="cpu"), {}
        if shape.static and not shape.tables and not shape.causal:
            k_document = (keys + 5 * torch.arange(1 if self.case.shared else BATCH, device="cpu")[:, None]) // 13
            q_document = k_document[:, -self.case.queries :].clone()
            q_document[:, 0] = q_document[:, 0] if self.case.queries == 1 else -1
            shared = self.case.shared
            documents = {"q_document": q_document, "k_document": k_document}
            documents = {name: x[0] if shared else x for name, x in documents.items()}
        padding = None
        if shape.padding:
            padding = (keys * torch.tensor([[7], [3]], device="cpu")) % 5 == 2
        causal = shape.causal
        return make_grid(self.q, self.k, causal=causal, q_pos=None, k_pos=None, key_padding_mask=padding, **documents)

    def on_cells(self, x: Tensor) -> Float[Tensor, "*b c q k"]:
        """A term on every cell: entry 0 of a table is of the largest lag."""
        if not self.shape.tables:
            return x
        i, j = torch.arange(self.case.queries, device="cpu"), torch.arange(self.case.keys, device="cpu")
        return x[:, self.case.queries - 1 - i[:, None] + j[None, :]]

    def _steady_rows(self) -> Bool[Tensor, "#b 1 #q 1"]:
        if self.wa is None or self.pre is None:
            return torch.ones(1, 1, 1, 1, dtype=torch.bool, device="cpu")
        q, k = self.q.double() / math.sqrt(self.shape.width), share_heads(self.k, self.shape.heads).double()
        pre = self.on_cells(self.pre.double())
        return steady_rows(q, k, self.wa.double(), pre, operands=self.dtype, terms=self.terms)

    # By definition ---------------------------------------------------------------------------------------------------

    def by_definition(self) -> dict[str, Tensor]:
        named = {"q": self.q, "k": self.k, "v": self.v}
        named |= {"static": self.static, "wa": self.wa, "pre": self.pre, "w2": self.w2}
        leaves = {n: x.double().requires_grad_() for n, x in named.items() if x is not None}
        out = reference_attention(leaves["q"], leaves["k"], leaves["v"], _ByDefinition(self, leaves), self.grid)
        if not self.case.gradients:
            return {"output": out.detach()}
        gradients = torch.autograd.grad(out, list(leaves.values()), self.towards.double())
        return {"output": out.detach(), **dict(zip(leaves, gradients, strict=True))}

    # By the kernels --------------------------------------------------------------------------------------------------

    def launched(self, device: torch.device) -> dict[str, Tensor]:
        q, k, v, towards = (self._laid_out(x.to(device)) for x in (self.q, self.k, self.v, self.towards))
        others = (self.static, self.wa, self.pre, self.w2, self.grid.key_padding_mask)
        static, wa, pre, w2, padding = (None if x is None else x.to(device) for x in others)
        assert self.grid.offset is not None
        call = LagCall(q, k, v, static, wa, pre, w2, padding, self.grid.offset, self.shape.causal, True)
        found = self._by_lags(call, towards) if self.shape.tables else self._by_cells(call, towards)
        names = ("output", "q", "k", "v", "static", "wa", "pre", "w2")
        return {name: x for name, x in zip(names, found, strict=False) if x is not None}

    def _laid_out(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).contiguous().transpose(1, 2) if self.case.heads_beside else x

    def _by_lags(self, call: LagCall, towards: Tensor) -> tuple[Tensor | None, ...]:
        out, softmax = lags.forward(call)
        return (out, *lags.backward(towards, out, softmax, call)) if self.case.gradients else (out,)

    def _by_cells(self, call: LagCall, towards: Tensor) -> tuple[Tensor | None, ...]:
        attention = run.Attention(
            call.q,
            call.k,
            call.v,
            call.wa,
            call.w2,
            causal_offset=call.causal_offset,
            key_padding_mask=call.key_padding_mask,
        )
        static, pre = self._with_mask(call.static), None if call.pre is None else call.pre.transpose(0, 1)

        def terms(block: RowBlock) -> TileTerms:
            part = (..., cells.rows_of(block), slice(0, block.keys))
            return TileTerms(None if static is None else static[part], None if pre is None else pre[part])

        out, softmax = cells.forward(attention, terms, call.q, call.v)
        if not self.case.gradients:
            return (out,)
        found = attention.backward(towards, out, softmax)
        d_static, d_pre = (None if x is None else torch.zeros_like(x) for x in (call.static, call.pre))
        for block in cells.row_blocks(attention):
            placed = cells.place(attention, terms(block), block)
            of_rows = found.rows(placed, cells.rows_of(block), block.keys)
            for total, x in zip((d_static, d_pre), of_rows, strict=True):
                if total is not None and x is not None:
                    x = x.sum(0, keepdim=True) if len(total) == 1 else x
                    total[..., cells.rows_of(block), : block.keys] = x
        d_wa, d_w2 = (None, None) if call.wa is None else (found.d_wa, found.d_w2)
        return out, found.d_q, found.d_k, found.d_v, d_static, d_wa, d_pre, d_w2

    def _with_mask(self, static: Tensor | None) -> Float[Tensor, "h #i q k"] | None:
        """As ``bias_tiles`` gives it: channels first, base 2, -inf where something other than padding hides."""
        visible = replace(self.grid, key_padding_mask=None).visible()
        if static is None:
            return None
        static = static.transpose(0, 1) * run.LOG2_E
        if visible is None:
            return static
        visible = visible if visible.dim() == 3 else visible.unsqueeze(0)
        return torch.where(visible.to(static.device), static, -torch.inf)


class _ByDefinition(PositionalEncoding):
    """L = A + static + W2 leaky(Wa A + pre), for :func:`reference_attention`."""

    def __init__(self, example: _Example, leaves: dict[str, Tensor]) -> None:
        heads, width = example.shape.heads, example.shape.width
        super().__init__(
            AttentionDims(num_heads=heads, head_dim=width, train_length=example.case.keys, model_dim=heads * width)
        )
        self.example, self.leaves = example, leaves

    def logits(
        self,
        scores: Float[Tensor, "b h q k"],
        q: Float[Tensor, "b h q d"],
        k: Float[Tensor, "b g k d"],
        grid: Grid,
    ) -> Float[Tensor, "b h q k"]:
        logits, on_cells = scores, self.example.on_cells
        if "static" in self.leaves:
            logits = logits + on_cells(self.leaves["static"])
        if "wa" in self.leaves:
            z = torch.einsum("Dh,bhqk->bDqk", self.leaves["wa"], scores) + on_cells(self.leaves["pre"])
            hidden = torch.nn.functional.leaky_relu(z, LEAKY_SLOPE)
            logits = logits + torch.einsum("hD,bDqk->bhqk", self.leaves["w2"], hidden)
        return logits
