"""The self-check: compares outputs and all gradients of the kernels on small calls with the definition.

The definition is computed in float64 on the CPU, where flags of the GPU have no effect. The kernels are called without
autograd: a check may begin within a backward pass, whose GPU thread would then wait for itself. Random numbers come
from a generator with a fixed seed.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dape.ops.attention.bounds import bounds, relative_errors, steady_rows
from dape.ops.attention.check import make_grid
from dape.ops.attention.engines.base import Call, LagTerms, RampTerms, RowBlock
from dape.ops.attention.engines.triton import Triton
from dape.ops.attention.reference import reference_attention
from dape.ops.attention.tiles import TileTerms
from dape.ops.attention.triton_kernels import run
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
    """Whether terms per cell are the same for all items."""
    heads_beside: bool
    """Whether q, k and v are [b, t, h, d] in memory, the layout of projections."""


def cases() -> list[Case]:
    """Odd sizes, and whole tiles: triton compiles other kernels if addresses and strides are multiples of 16. One row
    with many keys, as in decoding, is split into parts of the keys, and checked only forward."""
    return [
        Case("odd sizes", 21, 37, gradients=True, shared=False, heads_beside=True),
        Case("whole tiles", 32, 48, gradients=True, shared=True, heads_beside=False),
        Case("one row", 1, 2 * run.SPLIT_KEYS + 19, gradients=False, shared=True, heads_beside=True),
    ]


@dataclass(frozen=True)
class Finding:
    """The largest error of one tensor of one case."""

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
    """Findings for every tensor of every case. Raises the exceptions of compiling and launching."""
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
        lags = case.queries + case.keys - 1
        items = 1 if case.shared else BATCH

        def term(channels: int) -> Tensor:
            if shape.kinks:
                return normal(2, shape.kinks + 1, channels)
            return normal(channels, lags) if shape.tables else normal(items, channels, case.queries, case.keys)

        self.static = term(heads) if shape.static else None
        self.wa = normal(hidden, heads, scale=heads**-0.5) if hidden else None
        self.pre = term(hidden) if hidden else None
        self.w2 = normal(heads, hidden, scale=hidden**-0.5) if hidden else None
        self.table, self.rows = (normal(lags), normal(items, case.queries)) if shape.kinks else (None, None)
        self.kinks = self._kinks()
        self.grid = self._grid()
        towards = normal(BATCH, heads, case.queries, shape.values).to(self.dtype)
        self.towards = towards * self._steady_rows().to(self.dtype)

    @property
    def terms(self) -> int:
        """The number of terms in all sums of an output or a gradient."""
        shape = self.shape
        return shape.width + shape.values + shape.heads + shape.hidden + self.case.keys + BATCH * self.case.queries

    def _grid(self) -> Grid:
        """A grid whose queries are the last keys. Terms per cell without a causal mask hide documents from each other,
        and a row from all keys."""
        shape, keys, documents = self.shape, torch.arange(self.case.keys, device="cpu"), {}
        if shape.static and not shape.tables and not shape.causal:
            k_document = (keys + 5 * torch.arange(1 if self.case.shared else BATCH, device="cpu")[:, None]) // 13
            q_document = k_document[:, -self.case.queries :].clone()
            q_document[:, 0] = q_document[:, 0] if self.case.queries == 1 else -1
            documents = {"q_document": q_document, "k_document": k_document}
            documents = {name: x[0] if self.case.shared else x for name, x in documents.items()}
        padding = (keys * torch.tensor([[7], [3]], device="cpu")) % 5 == 2 if shape.padding else None
        causal = shape.causal
        return make_grid(self.q, self.k, key_padding_mask=padding, causal=causal, **documents)

    def _kinks(self) -> Float[Tensor, " w"] | None:
        """Kinks as far as possible from all cells, so that rounding does not move a cell to another piece."""
        if self.table is None or self.rows is None:
            return None
        places = self._along(self.table, self.rows).flatten().sort().values
        widest = places.diff().topk(self.shape.kinks).indices.sort().values
        return (places[widest] + places[widest + 1]) / 2

    def _along(self, table: Float[Tensor, " n"], rows: Float[Tensor, "i q"]) -> Float[Tensor, "i q k"]:
        return table[self._entry()] * rows.unsqueeze(-1)

    def _entry(self) -> Int[Tensor, "q k"]:
        """The table entry of each cell; entry 0 is the largest lag."""
        i, j = torch.arange(self.case.queries, device="cpu"), torch.arange(self.case.keys, device="cpu")
        return self.case.queries - 1 - i[:, None] + j[None, :]

    def on_cells(self, x: Tensor, table: Tensor | None, rows: Tensor | None) -> Float[Tensor, "*b c q k"]:
        """A term on every cell."""
        if table is not None and rows is not None:
            along = self._along(table, rows).unsqueeze(-1)
            assert self.kinks is not None
            piece = (along > self.kinks).sum(-1)
            return (x[0, piece] * along + x[1, piece]).movedim(-1, -3)
        return x[:, self._entry()] if self.shape.tables else x

    def _steady_rows(self) -> Bool[Tensor, "#b 1 #q 1"]:
        if self.wa is None or self.pre is None:
            return torch.ones(1, 1, 1, 1, dtype=torch.bool, device="cpu")
        q, k = self.q.double() / math.sqrt(self.shape.width), share_heads(self.k, self.shape.heads).double()
        pre = self.on_cells(self.pre.double(), self.table, self.rows)
        return steady_rows(q, k, self.wa.double(), pre, operands=self.dtype, terms=self.terms)

    # By definition ---------------------------------------------------------------------------------------------------

    def by_definition(self) -> dict[str, Tensor]:
        named = {"q": self.q, "k": self.k, "v": self.v}
        named |= {"static": self.static, "wa": self.wa, "pre": self.pre, "w2": self.w2}
        named |= {"table": self.table, "rows": self.rows}
        leaves = {n: x.double().requires_grad_() for n, x in named.items() if x is not None}
        out = reference_attention(leaves["q"], leaves["k"], leaves["v"], _ByDefinition(self, leaves), self.grid)
        if not self.case.gradients:
            return {"output": out.detach()}
        gradients = torch.autograd.grad(out, list(leaves.values()), self.towards.double())
        return {"output": out.detach(), **dict(zip(leaves, gradients, strict=True))}

    # By the kernels --------------------------------------------------------------------------------------------------

    def launched(self, device: torch.device) -> dict[str, Tensor]:
        q, k, v, towards = (self._laid_out(x.to(device)) for x in (self.q, self.k, self.v, self.towards))
        others = (self.static, self.wa, self.pre, self.w2, self.table, self.rows, self.kinks)
        others = (None if x is None else x.to(device) for x in (*others, self.grid.key_padding_mask))
        static, wa, pre, w2, table, rows, kinks, padding = others
        offset = self.grid.offset if self.shape.causal else None
        call = Call(q, k, v, wa, w2, padding, offset)
        if static is not None and table is not None and rows is not None and kinks is not None:
            terms = RampTerms(static, pre, table, rows, kinks)
        else:
            terms = LagTerms(static, pre, True) if self.shape.tables else _Cells(self._with_mask(static), static, pre)
        engine = Triton()
        out, softmax = engine.forward(call, terms)
        if not self.case.gradients:
            return {"output": out}
        found = engine.backward(call, terms, towards, out, softmax)
        d_static, d_pre, *of_ramp = found.terms if self.shape.tables else found.terms.found
        d_static = None if static is None else d_static
        named = {"q": found.q, "k": found.k, "v": found.v, "static": d_static, "wa": found.wa, "pre": d_pre}
        named |= {"w2": found.w2, **dict(zip(("table", "rows"), of_ramp, strict=False))}
        return {"output": out} | {n: x for n, x in named.items() if x is not None}

    def _laid_out(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).contiguous().transpose(1, 2) if self.case.heads_beside else x

    def _with_mask(self, static: Tensor | None) -> Float[Tensor, "h #i q k"] | None:
        """The static term as in ``bias_tiles``: channels first, base 2, -inf where masks other than padding hide."""
        visible = replace(self.grid, key_padding_mask=None).visible()
        if static is None:
            return None
        static = static.transpose(0, 1) * run.LOG2_E
        if visible is None:
            return static
        visible = visible if visible.dim() == 3 else visible.unsqueeze(0)
        return torch.where(visible.to(static.device), static, -torch.inf)


class _Cells:
    """Given terms on all cells, with the interface of :class:`RowTerms`. Also collects their gradients."""

    def __init__(self, masked: Tensor | None, static: Tensor | None, pre: Tensor | None) -> None:
        self._masked, self._pre = masked, None if pre is None else pre.transpose(0, 1)
        self.found = [None if x is None else torch.zeros_like(x) for x in (static, pre)]
        self._block: RowBlock | None = None

    @property
    def differ_by_item(self) -> bool:
        return any(x is not None and len(x) > 1 for x in self.found)

    def on_rows(self, block: RowBlock, *, backward: bool = False) -> TileTerms:
        self._block, part = block, (..., block.part, slice(0, block.keys))
        return TileTerms(*(None if x is None else x[part] for x in (self._masked, self._pre)))

    def sums(self) -> "_Cells":
        return self

    def add(self, terms: TileTerms, d_logits: Tensor, d_hidden: Tensor | None) -> None:
        assert self._block is not None
        for total, x in zip(self.found, (d_logits, d_hidden), strict=True):
            if total is not None and x is not None:
                x = x.sum(1, keepdim=True) if len(total) == 1 else x
                total[..., self._block.part, : self._block.keys] = x.transpose(0, 1)


class _ByDefinition(PositionalEncoding):
    """L = A + static + w2 leaky(wa A + pre), for :func:`reference_attention`."""

    def __init__(self, example: _Example, leaves: dict[str, Tensor]) -> None:
        heads, width = example.shape.heads, example.shape.width
        super().__init__(
            AttentionDims(num_heads=heads, head_dim=width, train_length=example.case.keys, model_dim=heads * width)
        )
        self.example, self.leaves = example, leaves

    def logits(
        self, scores: Float[Tensor, "b h q k"], q: Float[Tensor, "b h q d"], k: Float[Tensor, "b g k d"], grid: Grid
    ) -> Float[Tensor, "b h q k"]:
        ramp = {"table": self.leaves.get("table"), "rows": self.leaves.get("rows")}
        logits, on_cells = scores, partial(self.example.on_cells, **ramp)
        if "static" in self.leaves:
            logits = logits + on_cells(self.leaves["static"])
        if "wa" in self.leaves:
            z = torch.einsum("Dh,bhqk->bDqk", self.leaves["wa"], scores) + on_cells(self.leaves["pre"])
            hidden = torch.nn.functional.leaky_relu(z, LEAKY_SLOPE)
            logits = logits + torch.einsum("hD,bDqk->bhqk", self.leaves["w2"], hidden)
        return logits
