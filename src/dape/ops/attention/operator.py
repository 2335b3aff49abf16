"""``attention``: the public function, and the choice of its implementation."""

from dataclasses import dataclass, replace
from typing import Literal, get_args, overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dape.modules import without_autocast
from dape.ops.attention.bias_tiles import bias_tile_attention
from dape.ops.attention.check import (
    Features,
    check_bias_shape,
    check_causal,
    check_no_tangents,
    check_outcome,
    check_separable,
    check_tensors,
    make_grid,
    with_features,
)
from dape.ops.attention.engines.base import Engine, OfRowsAndKeys, Verdict
from dape.ops.attention.engines.catalogue import ENGINES
from dape.ops.attention.lag_tables import lag_attention
from dape.ops.attention.memory import LagMemory, LagTables
from dape.ops.attention.reference import reference_attention, zero_output
from dape.ops.attention.row_blocks import row_block_attention
from dape.ops.attention.row_forms import KERNELS, RowKernel, row_form_attention
from dape.positional.angles import exact_dtype
from dape.positional.base import PositionalEncoding, Ramp, ScoreForm, Separable, any_form, share_heads
from dape.positional.grid import Grid
from dape.positional.row_forms import RowForm

Impl = Literal["auto", "reference", "blocked", "fused", "triton", "sdpa"]

NO_SINKS = "its kernels do not support sinks"

SMALL_CELLS = 1 << 18
"""With at most this many batch x head x query x key cells, an encoding without a closed form is computed at once."""
SHORT_KEYS, WIDE, SHORT_CELLS = 48, 32, 1 << 22
"""Without a causal mask, the whole matrix is faster on a CPU than tiles if there are at most SHORT_KEYS keys and
SHORT_CELLS cells, and heads are at least WIDE. Only the compiled kernel with tables over lags is faster."""
MASK_CELLS = 1 << 24
"""Most cells of a mask for PyTorch's attention. More rows are computed in blocks, so that memory stays linear in the
length."""


@dataclass(frozen=True)
class Choice:
    """The implementation that computes a call, and the reason for it."""

    impl: Literal["reference", "blocked", "fused", "triton", "sdpa"]
    kernel: Literal["whole matrix", "lag tables", "lag ramps", "bias tiles", "row blocks", "torch sdpa"] | RowKernel
    reason: str


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pe: PositionalEncoding,
    *,
    causal: bool = True,
    q_pos: Tensor | None = None,
    k_pos: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    q_document: Tensor | None = None,
    k_document: Tensor | None = None,
    features: Features | None = None,
    rotated: bool = False,
    memory: LagMemory | None = None,
    impl: Impl = "auto",
    explain: Literal[True],
) -> tuple[Tensor, Choice]: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pe: PositionalEncoding,
    *,
    causal: bool = True,
    q_pos: Tensor | None = None,
    k_pos: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    q_document: Tensor | None = None,
    k_document: Tensor | None = None,
    features: Features | None = None,
    rotated: bool = False,
    memory: LagMemory | None = None,
    impl: Impl = "auto",
    explain: Literal[False] = False,
) -> Tensor: ...


def attention(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    v: Float[Tensor, "b g k e"],
    pe: PositionalEncoding,
    *,
    causal: bool = True,
    q_pos: Int[Tensor, "*b q"] | None = None,
    k_pos: Int[Tensor, "*b k"] | None = None,
    key_padding_mask: Bool[Tensor, "b k"] | None = None,
    q_document: Int[Tensor, "*b q"] | None = None,
    k_document: Int[Tensor, "*b k"] | None = None,
    features: Features | None = None,
    rotated: bool = False,
    memory: LagMemory | None = None,
    impl: Impl = "auto",
    explain: bool = False,
) -> Float[Tensor, "b h q e"] | tuple[Float[Tensor, "b h q e"], Choice]:
    """Attention with any positional encoding: ``softmax(mask(pe.logits(q k' / sqrt(d)))) v``.

    Half-precision inputs are computed in float32, and the output is returned in their dtype (rotated q and k are
    rounded to it). Rows that see no key return zeros.

    Args:
        q: queries.
        k: keys. They may have fewer heads ``g`` than q (grouped-query attention).
        v: values, with the heads of the keys.
        pe: the encoding, from :func:`dape.build` or an instance of your own class.
        causal: hide keys whose position is larger than the query's.
        q_pos: positions of the queries; by default they are the last keys, as with a KV cache.
        k_pos: positions of the keys; by default 0, 1, 2, ...
        key_padding_mask: True at keys that are padding.
        q_document: numbers of the documents of a packed batch. Queries see only keys of their document; positions that
            start again at 0 do not separate documents.
        k_document: the same of the keys.
        features: for encodings that read features (fox, inkling): ``pe.features(x)`` of all keys, where x is the input
            of the attention layer and the queries are the last keys; or a pair, of the queries and of the keys.
        rotated: q and k are already rotated by ``pe.rotate``, such as the keys of a cache if ``pe.rotates_once``.
        memory: tables of the bias that are kept from token to token, one :class:`LagMemory` for each layer's cache.
        impl: ``reference``: the definition, memory quadratic in the length. ``blocked``: exact, memory linear in the
            length. ``fused``: the same in a C++ kernel (CPU, not float64), prebuilt or compiled on first use.
            ``triton``: the same in Triton kernels (GPU, not float64). They were developed without a GPU, and are
            compared with the definition on your GPU before they are used (``DAPE_KERNELS`` in
            ``ops/attention/README.md``). ``sdpa``: PyTorch's fused attention, for encodings that do not change the
            scores. ``auto``: the best of these for the call.
        explain: also return the choice.

    Returns:
        The output for every query; with ``explain``, a pair of the output and the :class:`Choice`.

    Raises:
        ValueError: shapes, positions or features that do not fit the encoding or each other, or an ``impl`` that cannot
            compute the call exactly.
        TypeError: positions that are not integers, or a ``pe`` that is not an encoding.

    Examples:
        >>> from dape import build
        >>> pe = build("dape-alibi", num_heads=2, head_dim=4, train_length=8)
        >>> q, k, v = (torch.randn(1, 2, 16, 4) for _ in range(3))
        >>> attention(q, k, v, pe).shape
        torch.Size([1, 2, 16, 4])
    """
    check_tensors(q, k, v, pe)
    if impl not in get_args(Impl):
        raise ValueError(f"impl={impl!r} is not known; choose one of {', '.join(get_args(Impl))}")
    grid = make_grid(q, k, q_pos, k_pos, key_padding_mask, q_document, k_document, causal=causal)
    grid = with_features(grid, features, pe, q, k)
    pe, grid = pe.settle(grid)
    check_causal(pe, causal)
    # Autocast would compute scores, f and softmax in half precision.
    with without_autocast(q.device):
        form = any_form(pe)
        choice = choose(q, k, v, grid, form, impl, sinks=pe.sinks() is not None)
        if choice.impl in ENGINES:
            check_no_tangents(q, k, v, *pe.parameters())
        q, k = (q, k) if rotated else pe.rotate(q, k, grid)
        out = _run(choice, q, k, v, pe, grid, form, memory)
    check_outcome(out, pe)
    return (out, choice) if explain else out


def _exporting() -> bool:
    """Whether torch.export is tracing. Torch 2.6 cannot tell: what it exports calls our operators."""
    return hasattr(torch.compiler, "is_exporting") and torch.compiler.is_exporting()


def choose(
    q: Tensor, k: Tensor, v: Tensor, grid: Grid, form: ScoreForm | RowForm | None, impl: Impl, *, sinks: bool = False
) -> Choice:
    """The implementation that ``attention`` uses for a call. Raises ValueError if ``impl`` cannot compute it."""
    plain = isinstance(form, ScoreForm) and form.plain and grid.offset is not None and grid.q_document is None
    plain = plain and not sinks
    if impl == "reference":
        return Choice("reference", "whole matrix", "asked for")
    if impl == "auto" and not plain and _exporting():
        return Choice("reference", "whole matrix", "exported: only operations that every runtime has, for any length")
    if impl == "sdpa" and not plain:
        raise ValueError(
            "impl='sdpa' is exact only for encodings that do not change the logits (nope, sinusoidal, learned, "
            "rotations), without sinks, on consecutive positions; use impl='auto'"
        )
    if isinstance(form, RowForm):
        return _choose_row_form(q, k, v, grid, form, impl, sinks=sinks)
    match impl:
        case "blocked":
            return _choose_blocked(grid, form)
        case "fused" | "triton":
            return _choose_kernel(impl, q, k, v, grid, form, sinks=sinks)
        case "sdpa":
            return Choice("sdpa", "torch sdpa", "asked for")
    if plain:
        return Choice("sdpa", "torch sdpa", "the logits are plain scores, for which PyTorch's fused attention is exact")
    cells = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    if not isinstance(form, ScoreForm):
        return _choose_rows(q, k, "logits have no closed form")
    engine = _first_engine(q)
    found = _judge(engine.name, q, k, v, grid, form, sinks=sinks)
    short = form.mix is None and cells <= SHORT_CELLS and _is_short(q, k, grid)
    chosen = replace(_choose_blocked(grid, form, engine.name), impl=engine.name)
    if short and not (found.ok and chosen.kernel != "bias tiles"):
        return Choice("reference", "whole matrix", "there are so few keys that the matrix is faster than tiles of it")
    words = found.words if found.ok or engine.name != "fused" else f"not compiled: {found.words}"
    chosen = chosen if found.ok else _choose_blocked(grid, form)
    return _with_reason(chosen, words) if words else chosen


def _choose_row_form(q: Tensor, k: Tensor, v: Tensor, grid: Grid, form: RowForm, impl: Impl, *, sinks: bool) -> Choice:
    engine = _first_engine(q) if impl == "auto" else ENGINES[impl]
    found = Verdict(False, NO_SINKS) if sinks else engine.judge_rows(q, k, v, grid, form)
    if found.ok:
        choice = Choice("blocked", KERNELS[type(form)], "there is a kernel for this form of logits")
        return replace(choice, impl=engine.name)
    if impl in ("fused", "triton"):
        raise ValueError(f"impl={impl!r} is not possible: {found.words}; use impl='auto'")
    return _choose_rows(q, k, found.words, small_matrix=impl == "auto")


def _choose_rows(q: Tensor, k: Tensor, words: str, *, small_matrix: bool = True) -> Choice:
    if small_matrix and q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] <= SMALL_CELLS:
        return Choice("reference", "whole matrix", f"{words}, and the matrix is small")
    return Choice("blocked", "row blocks", f"{words}: whole rows at a time")


def _first_engine(q: Tensor) -> Engine:
    return next(engine for engine in ENGINES.values() if engine.serves(q.device))


def _with_reason(choice: Choice, more: str) -> Choice:
    return replace(choice, reason=f"{choice.reason}; {more}")


def _judge(engine: str, q: Tensor, k: Tensor, v: Tensor, grid: Grid, form: ScoreForm, *, sinks: bool) -> Verdict:
    if sinks and not ENGINES[engine].takes_sinks:
        return Verdict(False, NO_SINKS)
    tables = _choose_blocked(grid, form, engine).kernel in ("lag tables", "lag ramps")
    return ENGINES[engine].judge(q, k, v, grid, form, tables=tables)


def _is_short(q: Tensor, k: Tensor, grid: Grid) -> bool:
    return q.device.type == "cpu" and not grid.causal and k.shape[2] <= SHORT_KEYS and q.shape[3] >= WIDE


def _choose_kernel(
    impl: Literal["fused", "triton"],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grid: Grid,
    form: ScoreForm | None,
    *,
    sinks: bool,
) -> Choice:
    if form is None:
        raise ValueError(
            f"impl={impl!r} needs logits in closed form. This encoding has none, or lost it because one of its layers "
            "has hooks or was replaced, as by pruning or LoRA; use impl='auto'"
        )
    found = _judge(impl, q, k, v, grid, form, sinks=sinks)
    if not found.ok:
        raise ValueError(f"impl={impl!r} is not possible: {found.words}; use impl='auto'")
    choice = replace(_choose_blocked(grid, form, impl), impl=impl)
    return _with_reason(choice, found.words) if found.words else choice


def _choose_blocked(grid: Grid, form: ScoreForm | None, engine: str = "blocked") -> Choice:
    """The way in which ``engine`` computes a call; named as for ``blocked``."""
    if form is None:
        return Choice("blocked", "row blocks", "logits have no closed form: whole rows at a time")
    if grid.offset is None or grid.q_document is not None:
        return Choice("blocked", "bias tiles", "several documents, or positions that are not one consecutive run")
    if form.separable is not None and not ENGINES[engine].takes_separable:
        return Choice("blocked", "bias tiles", "B has a term for each query and key: it is evaluated on each tile")
    if form.source is None and form.separable is not None:
        return Choice("blocked", "lag tables", "B is a number of the query plus one of the key")
    if form.source is not None and form.source.at is None:
        if form.source.ramp is not None and ENGINES[engine].takes_ramps:
            words = "B is piecewise linear in the product of a number of the lag and a number of the row"
            return Choice("blocked", "lag ramps", words)
        return Choice("blocked", "bias tiles", "B depends on more than the lag: it is evaluated on each tile")
    return Choice("blocked", "lag tables", "B depends only on the lag: one table serves all rows")


def _run(
    choice: Choice,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pe: PositionalEncoding,
    grid: Grid,
    form: ScoreForm | RowForm | None,
    memory: LagMemory | None,
) -> Tensor:
    if q.shape[2] == 0 or k.shape[2] == 0:
        return zero_output(q, v)
    match choice.kernel:
        case "whole matrix":
            return reference_attention(q, k, v, pe, grid)
        case "row blocks":
            return row_block_attention(q, k, v, pe, grid)
        case "torch sdpa":
            return _sdpa(q, k, v, grid)
        case "bias tiles":
            assert isinstance(form, ScoreForm)
            separable, grid = _separable(q, k, form, grid), replace(grid, q_features=None, k_features=None)
            return bias_tile_attention(q, k, v, form, grid, separable=separable, sinks=pe.sinks(), engine=choice.impl)
        case "lag tables" | "lag ramps":
            assert isinstance(form, ScoreForm)
            return _by_lag_tables(q, k, v, pe, form, grid, memory, engine=choice.impl)
        case _:
            assert isinstance(form, RowForm)
            return row_form_attention(q, k, v, pe, form, grid, memory, engine=choice.impl)


def _by_lag_tables(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pe: PositionalEncoding,
    form: ScoreForm,
    grid: Grid,
    memory: LagMemory | None,
    *,
    engine: str,
) -> Tensor:
    assert grid.offset is not None
    heads, queries, keys = q.shape[1], q.shape[2], k.shape[2]
    count = queries + keys - 1
    ramp = None if form.source is None or form.source.at is not None else form.source.ramp
    # One line if the items share their positions, else one for each item.
    rows = None if ramp is None else ramp.on_rows(grid).reshape(-1, queries)
    if memory is not None and memory.serves(grid, queries, keys):
        kept, first = memory.tables(pe, keys, q.device, lambda lags: _lag_tables(form, grid, lags, heads))
        if engine == "fused" and pe.sinks() is None:
            separable = _separable(q, k, form, grid, decoding=True)
            return memory.prepared(form, heads).attend(q, k, v, grid.key_padding_mask, first, rows, separable)
        tables = kept.part(first, count)
    else:
        lags = (grid.offset + queries - 1) - torch.arange(count, device=q.device)
        tables = _lag_tables(form, grid, lags, heads)
    return lag_attention(
        q,
        k,
        v,
        static=tables.static,
        wa=None if form.mix is None else form.mix.wa,
        pre=tables.pre,
        w2=None if form.mix is None else form.mix.w2,
        table=tables.table,
        rows=rows,
        kinks=tables.kinks,
        separable=_separable(q, k, form, grid),
        sinks=pe.sinks(),
        key_padding_mask=grid.key_padding_mask,
        offset=grid.offset,
        causal=grid.causal,
        engine=engine,
    )


def _separable(q: Tensor, k: Tensor, form: ScoreForm, grid: Grid, *, decoding: bool = False) -> OfRowsAndKeys | None:
    """What queries and keys add to static and pre. Pre is linear in B, so wb (u_i + v_j) is again such a sum."""
    if form.separable is None:
        return None
    given = form.separable if isinstance(form.separable, Separable) else form.separable(grid)
    check_separable(given, q, k)
    exact = exact_dtype(q.device)
    rows, keys = (x.to(exact) for x in given)
    if decoding and rows.shape[2] == 1:  # the sum is no larger than the keys, and float32 is precise enough for it
        keys = (rows + keys).float()
        return OfRowsAndKeys(_with_hidden(form, torch.zeros_like(rows).float()), _with_hidden(form, keys))

    # The mean of the keys is moved to the rows. Otherwise large terms would cancel in the gradient of wb.
    common = keys.detach().mean(-1, keepdim=True)
    return OfRowsAndKeys(_with_hidden(form, rows + common), _with_hidden(form, keys - common))


def _with_hidden(form: ScoreForm, bias: Float[Tensor, "#b h n"]) -> Float[Tensor, "#b c n"]:
    """A part of B, and of pre if there is an f."""
    mix = form.mix
    if mix is None:
        return bias
    hidden = bias.new_zeros(len(bias), len(mix.b1), bias.shape[2]) if mix.wb is None else mix.wb.to(bias.dtype) @ bias
    return torch.cat([bias if form.adds_bias else torch.zeros_like(bias), hidden], dim=1)


def _lag_tables(form: ScoreForm, grid: Grid, lags: Int[Tensor, " n"], heads: int) -> LagTables:
    """Evaluate, once per lag, everything that does not depend on content."""
    bias = None
    if form.source is not None and form.source.at is None and form.source.ramp is not None:
        return _ramp_tables(form, form.source.ramp, grid, lags)
    if form.source is not None and form.source.at is not None:
        bias = form.source.at(grid.read_lag(lags), causal=grid.causal)
        check_bias_shape(bias, (heads, len(lags)))
    mix = form.mix
    if mix is None:
        return LagTables(static=bias, pre=None)
    b1, b2 = mix.b1.unsqueeze(-1), mix.b2.unsqueeze(-1)
    static = bias + b2 if bias is not None and form.adds_bias else b2.expand(-1, len(lags))
    pre = mix.wb @ bias + b1 if bias is not None and mix.wb is not None else b1.expand(-1, len(lags))
    return LagTables(static, pre)


def _ramp_tables(form: ScoreForm, ramp: Ramp, grid: Grid, lags: Int[Tensor, " n"]) -> LagTables:
    kinks, slopes, levels = ramp.pieces()
    table = ramp.at(grid.read_lag(lags), causal=grid.causal)
    bias, mix = torch.stack([slopes, levels]), form.mix
    if mix is None:
        return LagTables(bias, None, table, kinks)

    def with_constant(x: Tensor, constant: Tensor) -> Tensor:
        return torch.stack([x[0], x[1] + constant])

    static = with_constant(bias if form.adds_bias else torch.zeros_like(bias), mix.b2)
    weighted = bias.new_zeros(*bias.shape[:2], len(mix.b1)) if mix.wb is None else bias @ mix.wb.t().to(bias.dtype)
    return LagTables(static, with_constant(weighted, mix.b1), table, kinks)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, grid: Grid) -> Tensor:
    k, v = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])
    square = q.shape[2] == k.shape[2] and grid.offset == 0
    decoding = q.shape[2] == 1 and grid.offset == k.shape[2] - 1
    if grid.key_padding_mask is None and (square or decoding or not grid.causal):
        # The flag is a literal in each branch: a symbolic one would break a compiled graph.
        if grid.causal and not decoding:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)
    rows = max(1, MASK_CELLS // k.shape[2])
    if q.shape[2] <= rows or torch.compiler.is_compiling():
        return _masked_sdpa(q, k, v, grid)
    outputs = []
    for first in range(0, q.shape[2], rows):
        part, keys = slice(first, first + rows), k.shape[2]
        if grid.causal and grid.offset is not None:
            keys = max(1, min(keys, grid.offset + first + rows))
        outputs.append(_masked_sdpa(q[:, :, part], k[:, :, :keys], v[:, :, :keys], grid.rows(part).first_keys(keys)))
    return torch.cat(outputs, dim=2)


def _masked_sdpa(q: Tensor, k: Tensor, v: Tensor, grid: Grid) -> Tensor:
    visible = grid.visible()
    assert visible is not None
    visible = visible.unsqueeze(-3)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    # PyTorch does not define the output of rows that see no key.
    return out.masked_fill(~visible.any(-1, keepdim=True), 0.0)
