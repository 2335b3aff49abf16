"""Random calls of ``dape.attention``, small and odd: what they are made of, and how one is run and judged."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from tests.ops.attention.bounds import FEATURES, HALF, Exact, Rounding, excess, named_parameters
from torch import Tensor

import dape
from dape.ops.attention import operator, row_blocks, tiles, tiling
from dape.ops.attention.engines.cpp import Cpp
from dape.ops.attention.fused import run
from dape.ops.attention.fused.available import why_not_compiled
from dape.ops.attention.triton_kernels.available import why_not_triton
from dape.positional.base import PositionalEncoding
from dape.positional.catalogue import ENTRIES, encodings
from dape.positional.names import parse
from dape.positional.randomized import Randomized

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
VARIANTS = ["concat_residual", "concat", "add_residual", "bias_only", "bias_map"]
IMPLS = ["auto", "reference", "blocked", "fused", "sdpa"]
ROTATING = [entry.name for entry in ENTRIES.values() if "rotate" in entry.hook] + ["rerope", "self-extend"]
PAIRS_ALONE = ("rope", "pi", "yarn", "rerope", "self-extend", "multi-token", "transformer-xl")
"""They need an even width, other rotations two pairs."""
DRAWN = 300
"""Positions of a randomised encoding's draw."""
LAYOUTS = ["plain", "tokens first", "part of a larger one", "every second number", "one for all items"]
VALUES = ["usual", "usual", "usual", "zeros", "tiny", "large scores", "huge scores", "equal", "large values", "mixed"]
POSITIONS = ["none", "none", "one run", "gaps", "unordered", "negative", "of each item", "huge", "equal"]
PARAMETERS = ["usual", "usual", "usual", "large", "tiny", "zero"]


@dataclass(frozen=True)
class Case:
    """Everything that is drawn; the numbers themselves come from ``seed``."""

    name: str
    impl: str = "auto"
    dtype: torch.dtype = torch.float32
    options: dict[str, Any] = field(default_factory=dict)
    heads: int = 2
    kv_heads: int = 2
    width: int = 8
    value_width: int = 8
    batch: int = 2
    queries: int = 5
    keys: int = 5
    causal: bool = True
    padding: str = "none"
    documents: bool = False
    positions: str = "none"
    integers: torch.dtype = torch.int64
    layouts: tuple[str, str, str] = ("plain", "plain", "plain")
    values: str = "usual"
    parameters: str = "usual"
    half_parameters: bool = False
    tile_bytes: int | None = None
    many_items: bool = False
    threads: int = 1
    seed: int = 0

    @property
    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)


# Drawing -------------------------------------------------------------------------------------------------------------


PLAIN = sorted(ENTRIES)
WRAPPED = sorted(set(encodings()) - set(ENTRIES))
NAMES = [*PLAIN, *PLAIN, *WRAPPED]
"""The wraps about as often as what they are put on."""


def one_of(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


HEADS = one_of(*((h, g) for h in (1, 2, 3, 4, 6) for g in range(1, h + 1) if h % g == 0))
SIZES = st.fixed_dictionaries(
    {
        "batch": one_of(1, 1, 2, 3, 5),
        "queries": one_of(1, 2, 3, 7, 8, 9, 12, 13, 25, 37),
        "keys": one_of(1, 2, 3, 5, 8, 9, 16, 17, 31, 33, 63, 64, 65, 70),
    }
)
NONE_OF = one_of(*["nothing"] * 25, "keys", "queries", "batch")
WIDTHS = st.integers(1, 67)
CALL = st.fixed_dictionaries(
    {
        "padding": one_of(*["none"] * 4, *["some"] * 4, "a whole item", "all"),
        "documents": one_of(False, False, False, False, True),
        "integers": one_of(*INTEGERS),
        "layouts": st.tuples(*[one_of(*LAYOUTS)] * 3),
        "values": one_of(*VALUES),
        "parameters": one_of(*PARAMETERS),
        "half_parameters": one_of(False, False, False, False, True),
        "tile_bytes": one_of(None, 1, 4096, 40_000),
        "many_items": st.booleans(),
        "threads": one_of(1, 1, 1, 3),
        "seed": st.integers(0, 9999),
    }
)
OPTIONS = st.fixed_dictionaries(
    {
        "hidden": one_of(1, 2, 7, 8, 32, 33),
        "variant": one_of(*VARIANTS),
        "kernel": one_of(1, 3, 5),
        "mask_hidden": st.booleans(),
        "interleaved": st.booleans(),
        "npos": one_of(2, 3, 16),
    }
)


@st.composite
def cases(draw: st.DrawFn, impls: Sequence[str] = IMPLS, dtypes: Sequence[torch.dtype] = DTYPES) -> Case:
    name = draw(one_of(*NAMES))
    randomized = draw(one_of(False, False, False, False, False, True))
    base = parse(name).base
    (heads, kv_heads), sizes, width = draw(HEADS), draw(SIZES), draw(WIDTHS)
    if base in ROTATING or (base == "transformer-xl" and heads % 2):
        width += -width % (2 if base in PAIRS_ALONE else 4)
    if (none_of := draw(NONE_OF)) != "nothing":
        sizes[none_of] = 0
    positions = draw(one_of(*POSITIONS))
    if randomized and positions in ("negative", "huge"):  # what is drawn is for positions from 0 on
        positions = "gaps"
    if positions == "none":
        sizes["queries"] = min(sizes["queries"], sizes["keys"])
    more = {"pool": 4 * DRAWN} if randomized else {}
    if base == "multi-token":
        more["group"] = 2 - heads % 2
    return Case(
        name=f"randomized-{name}" if randomized else name,
        impl=draw(one_of(*impls)),
        dtype=draw(one_of(*dtypes)),
        options=options(name, draw(OPTIONS)) | more,
        heads=heads,
        kv_heads=kv_heads,
        width=width,
        value_width=draw(WIDTHS) if draw(st.booleans()) else width,
        causal=draw(st.booleans()) or not ENTRIES[base].load().supports_bidirectional,
        positions=positions,
        **sizes,
        **draw(CALL),
    )


def options(name: str, drawn: dict[str, Any]) -> dict[str, Any]:
    """Those that this encoding has."""
    parsed, known = parse(name), set()
    if parsed.wrapper:
        known.add("hidden")
    if parsed.wrapper == "dape-" and ENTRIES[parsed.base].hook == "bias":
        known.add("variant")
    if parsed.wrapper == "dape-v2-":
        known |= {"kernel", "mask_hidden"}
    if parsed.base == "multi-token":
        known.add("kernel")
    if parsed.base in ROTATING:
        known.add("interleaved")
    if parsed.base == "cope":
        known.add("npos")
    return {option: value for option, value in drawn.items() if option in known}


# The call ------------------------------------------------------------------------------------------------------------


def encoding(case: Case) -> PositionalEncoding:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        pe = dape.build(
            case.name, num_heads=case.heads, head_dim=case.width, train_length=16, model_dim=16, **case.options
        )
    factor = {"usual": 1.0, "large": 30.0, "tiny": 1e-6, "zero": 0.0}[case.parameters]
    with torch.no_grad():
        for parameter in pe.parameters():
            noise = torch.rand(parameter.shape, generator=case.generator)
            parameter.add_(0.1 * noise).mul_(factor)  # cope's table starts at zero
    if isinstance(pe, Randomized):
        pe = pe.draw(DRAWN, case.generator)
    if case.dtype == torch.float64 or case.half_parameters:
        pe = pe.to(case.dtype)
    return pe


def tensors(case: Case) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k and v, and what the output's gradient is."""
    generator = case.generator
    queries, keys = (case.batch, case.heads, case.queries), (case.batch, case.kv_heads, case.keys)
    shapes = ((*queries, case.width), (*keys, case.width), (*keys, case.value_width), (*queries, case.value_width))
    q, k, v, towards = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    match case.values:
        case "zeros":
            q, k = q * 0, k * 0
        case "tiny":
            q, v = q * 1e-6, v * 1e-6
        case "large scores":  # thousands
            q, k = 40 * q, 40 * k
        case "huge scores":  # some 1e4
            q, k = 200 * q, 100 * k
        case "equal":
            k, v = k[:, :, :1].expand_as(k), v
        case "large values":
            v = v * 1e3
        case "mixed":  # one key that takes everything, others of no weight
            scale = 10.0 ** torch.randint(-3, 3, (*keys, 1), generator=generator, dtype=torch.float64)
            k, v = k * scale, v / scale
    q, k, v, towards = (x.to(case.dtype) for x in (q, k, v, towards))
    q, k, v = (laid_out(x, layout) for x, layout in zip((q, k, v), case.layouts, strict=True))
    return q, k, v, towards


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers, elsewhere in memory; what lies between them is NaN."""
    match layout:
        case "tokens first":
            return x.transpose(1, 2).contiguous().transpose(1, 2)
        case "part of a larger one":
            b, h, t, d = x.shape
            larger = torch.full((b, h + 1, t + 2, d + 3), torch.nan, dtype=x.dtype)
            larger[:, :h, 1 : t + 1, 2 : d + 2] = x
            return larger[:, :h, 1 : t + 1, 2 : d + 2]
        case "every second number":
            twice = torch.full((*x.shape[:-1], 2 * x.shape[-1]), torch.nan, dtype=x.dtype)
            twice[..., ::2] = x
            return twice[..., ::2]
        case "one for all items" if len(x):
            return x[:1].expand_as(x)
    return x


def arguments(case: Case) -> dict[str, Any]:
    """Of the call, apart from tensors, encoding and implementation."""
    generator, found = case.generator, {"causal": case.causal}
    if case.positions != "none":
        found["q_pos"], found["k_pos"] = placed(case)
    if case.padding != "none":
        mask = torch.rand(case.batch, case.keys, generator=generator) < 0.3
        mask[: 1 if case.padding == "a whole item" else 0] = True
        found["key_padding_mask"] = mask | (case.padding == "all")
    if case.documents:
        for name, length in (("q_document", case.queries), ("k_document", case.keys)):
            shape = (case.batch, length) if case.seed % 2 else (length,)
            found[name] = torch.randint(0, 3, shape, generator=generator)
    return found


def features(case: Case, pe: PositionalEncoding) -> dict[str, tuple[Tensor, Tensor]]:
    """The argument of the call, for encodings that read any: features of unrelated queries and keys."""
    if not pe.needs_features:
        return {}
    generator = case.generator
    drawn = (torch.randn(case.batch, t, 16, generator=generator) for t in (case.queries, case.keys))
    made = (pe.features(x.to(torch.float64 if case.dtype == torch.float64 else torch.float32)) for x in drawn)
    of_queries, of_keys = (x.detach() for x in made if x is not None)
    return {"features": (of_queries, of_keys)}


def placed(case: Case) -> tuple[Tensor, Tensor]:
    """Positions in the integers of the case, or in int64 where they do not fit."""
    q, k, generator = torch.arange(case.queries), torch.arange(case.keys), case.generator
    match case.positions:
        case "one run":
            q, k = q + case.seed % 50, k + case.seed % 7
        case "gaps":
            q, k = 3 * q, 2 * k
        case "unordered":
            q, k = (torch.randint(0, 120, x.shape, generator=generator) for x in (q, k))
        case "negative":
            q, k = q - 20, k - 50
        case "of each item":
            q, k = (torch.randint(0, 120, (case.batch, len(x)), generator=generator).sort().values for x in (q, k))
        case "huge":
            far = int(10 ** (2 + case.seed % 14)) if case.seed % 5 else 2**53
            q, k = far - torch.randint(0, far, q.shape, generator=generator), k * (far // (len(k) + 1))
        case "equal":
            q, k = torch.full_like(q, 7), torch.full_like(k, 7)
    return narrowed(q, case.integers), narrowed(k, case.integers)


def narrowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    limits = torch.iinfo(dtype)
    fits = not x.numel() or (int(x.min()) >= limits.min and int(x.max()) <= limits.max)
    return x.to(dtype) if fits else x


# Running and judging -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_tiles(case: Case) -> Iterator[None]:
    """So that few numbers already have many tiles, shares and threads; and what is not written yet is NaN."""
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        torch.set_num_threads(case.threads)
        torch.use_deterministic_algorithms(True)
        patch.setattr(run, "MANY_ITEMS", 0 if case.many_items else 1 << 40)
        if case.tile_bytes is not None:
            patch.setattr(tiling, "cache_share", lambda: case.tile_bytes)
            patch.setattr(tiling, "MIN_ROWS", 8)
            patch.setattr(tiles, "STRIP_BYTES", case.tile_bytes // 4)
            patch.setattr(tiles, "SHORT_CALL", 0)
            patch.setattr(row_blocks, "BLOCK_BYTES", case.tile_bytes)
            patch.setattr(operator, "SMALL_CELLS", 0)
            patch.setattr(Cpp, "block_bytes", case.tile_bytes)
            patch.setattr(Cpp, "fewest_rows", 7)
        try:
            yield
        finally:
            torch.set_num_threads(before)
            torch.use_deterministic_algorithms(False)


def usable_impl(case: Case, pe: PositionalEncoding, q: Tensor) -> str:
    """The implementation of the case, or ``auto`` where it refuses such calls."""
    base = pe.base if isinstance(pe, Randomized) else pe
    form = base.score_form()
    scattered = case.positions not in ("none", "one run") or case.documents or not (case.queries and case.keys)
    match case.impl:
        case "fused" if form is None or why_not_compiled(q):
            return "auto"
        case "triton" if form is None or why_not_triton(q, q, q, form):
            return "auto"
        case "sdpa" if form is None or not form.plain or scattered:
            return "auto"
    return case.impl


@dataclass
class Seen:
    choice: operator.Choice
    exact: Exact
    actual: dict[str, Tensor]

    @property
    def excess(self) -> dict[str, float]:
        return excess(self.exact, self.actual)


def seen(case: Case) -> Seen:
    """One call, forward and backward, and the same in float64."""
    pe, (q, k, v, towards), call = encoding(case), tensors(case), arguments(case)
    call |= features(case, pe)
    read = [x.requires_grad_() for x in call.get("features", ())]
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    with small_tiles(case):
        out, choice = dape.attention(q, k, v, pe, impl=usable_impl(case, pe, q), explain=True, **call)
        wanted = {"q": q, "k": k, "v": v, **dict(zip(FEATURES, read, strict=False)), **named_parameters(pe)}
        found = torch.autograd.grad(out, list(wanted.values()), towards, allow_unused=True)
    gradients = (torch.zeros_like(x) if g is None else g for x, g in zip(wanted.values(), found, strict=True))
    rounding = Rounding(
        case.dtype,
        weights=choice.impl in ("sdpa", "triton") and case.dtype in HALF,
        factor=4.0 if choice.impl == "triton" else 1.0,
    )
    actual = {"output": out.detach(), **dict(zip(wanted, gradients, strict=True))}
    return Seen(choice, Exact(pe, q, k, v, towards, rounding, call), actual)


def judge(case: Case) -> Seen:
    found = seen(case)
    for name, value in found.exact.values.items():
        assert found.actual[name].shape == value.shape, name
    too_far = {name: ratio for name, ratio in found.excess.items() if not ratio <= 1}
    assert not too_far, f"beyond the bound, of which this is the multiple: {too_far} ({found.choice})"
    return found
