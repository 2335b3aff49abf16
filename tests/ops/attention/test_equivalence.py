"""Every implementation against the definition: outputs and the gradients of q, k, v and every parameter.

Sizes are odd and tiles tiny, so that a call has many tiles, several workers and ragged edges.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import HealthCheck, assume, currently_in_test_context, given, settings
from hypothesis import strategies as st
from tests.thinned import few, thinned
from torch import Tensor

import dape
from dape.ops.attention.engines.cpp import Cpp
from dape.ops.attention.fused import run
from dape.ops.attention.fused.available import why_not_compiled
from dape.positional.base import PositionalEncoding
from dape.positional.randomized import Randomized

HEADS, WIDTH = 4, 8
VARIANTS = ["concat_residual", "concat", "add_residual", "bias_only", "bias_map"]
ENCODINGS = {
    **{name: {} for name in ["kerple", "alibi", "t5", "fire", "transformer-xl", "cope"]},
    **{f"dape-kerple {variant}": {"variant": variant} for variant in VARIANTS},
    **{name: {} for name in ["dape-nope", "dape-rope", "dape-yarn", "dape-fire", "dape-v2-kerple"]},
    "dape-fire concat": {"variant": "concat"},
    **{name: {"pool": 400} for name in ["randomized-alibi", "randomized-dape-kerple"]},
}
CASES = [
    (label, causal) for label in ENCODINGS for causal in (True, False) if causal or label != "cope"
]  # cope counts from the query backwards: it has no other direction

pytestmark = pytest.mark.usefixtures("three_workers")


def make(label: str, dtype: torch.dtype = torch.float64) -> PositionalEncoding:
    torch.manual_seed(0)
    dims = {"num_heads": HEADS, "head_dim": WIDTH, "train_length": 32}
    pe = dape.build(label.partition(" ")[0], **dims, **ENCODINGS[label])
    with torch.no_grad():
        for parameter in pe.parameters():
            parameter.add_(0.2 * torch.rand_like(parameter))  # cope's table starts at zero
    pe = pe.draw(200, torch.Generator().manual_seed(3)) if isinstance(pe, Randomized) else pe
    return pe.to(dtype)


@dataclass
class Inputs:
    q: Tensor
    k: Tensor
    v: Tensor
    call: dict = field(default_factory=dict)

    def to(self, dtype: torch.dtype) -> "Inputs":
        return Inputs(self.q.to(dtype), self.k.to(dtype), self.v.to(dtype), self.call)


def draw(queries: int, keys: int | None = None, *, batch: int = 2, kv_heads: int = HEADS, value_width: int = WIDTH):
    torch.manual_seed(queries)
    keys = queries if keys is None else keys
    q, k = torch.randn(batch, HEADS, queries, WIDTH), torch.randn(batch, kv_heads, keys, WIDTH)
    return Inputs(2 * q.double(), k.double(), torch.randn(batch, kv_heads, keys, value_width).double())


def outputs_and_gradients(
    impl: str, pe: PositionalEncoding, inputs: Inputs, *, rows: Tensor | None = None, **call
) -> dict[str, Tensor]:
    """Of a random function of the output, or of some of its rows."""
    q, k, v = (x.detach().requires_grad_() for x in (inputs.q, inputs.k, inputs.v))
    out = dape.attention(q, k, v, pe, impl=impl, **inputs.call, **call)
    wanted = {"q": q, "k": k, "v": v, **{f"pe.{name}": parameter for name, parameter in pe.named_parameters()}}
    towards = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(out.dtype)
    towards = towards if rows is None else towards * rows
    gradients = torch.autograd.grad(out, list(wanted.values()), towards, allow_unused=True)
    zeros = (torch.zeros_like(x) if g is None else g for x, g in zip(wanted.values(), gradients, strict=True))
    return {"output": out.detach(), **dict(zip(wanted, zeros, strict=True))}


def assert_equivalent(label: str, inputs: Inputs, *, impl: str = "blocked", **call) -> dict[str, Tensor]:
    pe = make(label)
    expected = outputs_and_gradients("reference", pe, inputs, **call)
    actual = outputs_and_gradients(impl, pe, inputs, **call)
    for name, value in expected.items():
        assert value.isfinite().all(), name
        torch.testing.assert_close(actual[name], value, rtol=1e-9, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")
    return expected


SIZES = [1, 2, 7, 64, 129]


@pytest.mark.parametrize(("label", "causal", "t"), thinned(len(SIZES), CASES, SIZES))
def test_square(label, causal, t, tile_bytes):
    tile_bytes(4096)
    assert_equivalent(label, draw(t, batch=1 if t > 64 else 2), causal=causal)


@pytest.mark.parametrize(("label", "causal"), CASES)
def test_whatever_auto_chooses(label, causal):
    assert_equivalent(label, draw(17), impl="auto", causal=causal)


def padded() -> Inputs:
    inputs = draw(19, batch=3)
    mask = torch.zeros(3, 19, dtype=torch.bool)
    mask[0, :5], mask[1, 12:], mask[1, 3] = True, True, True
    inputs.call["key_padding_mask"] = mask
    return inputs


def at(inputs: Inputs, first_query: int, first_key: int) -> Inputs:
    inputs.call["q_pos"] = torch.arange(first_query, first_query + inputs.q.shape[2])
    inputs.call["k_pos"] = torch.arange(first_key, first_key + inputs.k.shape[2])
    return inputs


def scattered(of_queries: bool, of_keys: bool) -> Inputs:
    inputs = draw(13, 22)
    inputs.call["q_pos"] = torch.arange(13) * 3 if of_queries else torch.arange(9, 22)
    inputs.call["k_pos"] = torch.randperm(40)[:22].sort().values if of_keys else torch.arange(22)
    return inputs


def different_for_each_item(length: int = 13) -> Inputs:
    inputs, n = draw(length), torch.arange(length)
    inputs.call["q_pos"] = inputs.call["k_pos"] = torch.stack([n * 2, n + 9])
    return inputs


def transposed() -> Inputs:
    inputs = draw(21)
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v))
    assert not q.is_contiguous()
    return Inputs(q, k, v)


SITUATIONS = {
    "a chunk of the queries": lambda: draw(5, 23),
    "keys end long before the queries": lambda: at(draw(12, 17), 40, 0),
    "keys begin after the first queries": lambda: at(draw(13, 19), 0, 6),
    "every query comes before the first key": lambda: at(draw(9, 11), 0, 30),
    "queries with gaps": lambda: scattered(True, False),
    "keys with gaps": lambda: scattered(False, True),
    "positions of each item": different_for_each_item,
    "shared key heads": lambda: draw(21, kv_heads=2),
    "one key head": lambda: draw(21, kv_heads=1),
    "padding": padded,
    "narrow values": lambda: draw(21, value_width=3),
    "transposed layout": transposed,
}


KERNELS = {
    "lag tables": ["kerple", "dape-kerple concat_residual", "dape-yarn", "randomized-dape-kerple"],
    "lag ramps": ["fire", "dape-fire", "dape-fire concat"],  # bias tiles where positions are no single run
    "row blocks": ["transformer-xl", "cope", "dape-v2-kerple"],
}


@pytest.mark.parametrize(
    ("label", "causal", "situation"),
    thinned(4, [case for labels in KERNELS.values() for case in CASES if case[0] in labels], [*SITUATIONS]),
)
def test_situations(label, causal, situation, tile_bytes):
    tile_bytes(4096)
    assert_equivalent(label, SITUATIONS[situation](), causal=causal)


@pytest.mark.parametrize(("label", "causal"), CASES)
def test_batch_items_that_share_a_tile(label, causal, tile_bytes):
    tile_bytes(40 * 40 * HEADS * 8)
    assert_equivalent(label, draw(5, batch=7), causal=causal)


@pytest.mark.parametrize("label", ["kerple", "dape-kerple concat_residual", "dape-fire", "cope", "dape-v2-kerple"])
def test_rows_before_the_first_key_are_zero(label, tile_bytes):
    tile_bytes(4096)
    seen = assert_equivalent(label, at(draw(13, 19), 0, 6))
    assert (seen["output"][:, :, :6] == 0).all() and (seen["output"][:, :, 6:] != 0).any()
    assert (seen["q"][:, :, :6] == 0).all()


def assert_near(
    label: str, inputs: Inputs, *, impl: str, make: Callable[[str, torch.dtype], PositionalEncoding] = make, **call
) -> None:
    """In float32, relative to the largest value; the float64 reference has the same rounded inputs and parameters."""
    pe, inputs = make(label, torch.float32), inputs.to(torch.float32)
    exact_pe, exact_inputs = make(label, torch.float32).double(), inputs.to(torch.float64)
    rows = ~rows_at_a_kink(exact_pe, exact_inputs, **call)
    actual = outputs_and_gradients(impl, pe, inputs, rows=rows, **call)
    exact = outputs_and_gradients("reference", exact_pe, exact_inputs, rows=rows, **call)
    for name, value in exact.items():
        tolerance = (1e-5 if name == "output" else 1e-4) * max(1.0, value.abs().max().item())
        assert (actual[name] - value).abs().max() < tolerance, name  # a NaN would fail too


def rows_at_a_kink(pe: PositionalEncoding, inputs: Inputs, **call) -> Tensor:
    """[b, 1, q, 1]: rows with a hidden unit so near to 0 that rounding decides its slope. Their gradients jump if q
    changes by a few units in the last place of float32."""
    q, dq = inputs.q, outputs_and_gradients("reference", pe, inputs, **call)["q"]
    found = torch.zeros(len(q), 1, q.shape[2], 1, dtype=torch.bool)
    generator = torch.Generator().manual_seed(4)
    for _ in range(6):
        moved = q * (1 + 2e-6 * torch.randn(q.shape, generator=generator, dtype=q.dtype))
        other = outputs_and_gradients("reference", pe, replace(inputs, q=moved), **call)["q"]
        found |= (
            ((other - dq).abs() > 2e-5 * max(1.0, dq.abs().max().item())).any(-1, keepdim=True).any(1, keepdim=True)
        )
    enough = bool(found.double().mean() < 0.3)  # else little would be compared
    if currently_in_test_context():
        assume(enough)
    assert enough
    return found


@pytest.mark.parametrize(("label", "causal"), few(13, CASES))
def test_float32(label, causal, tile_bytes):
    tile_bytes(4096)
    assert_near(label, draw(129, batch=1), impl="blocked", causal=causal)


@settings(deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_shape(tile_bytes, data):
    label = data.draw(st.sampled_from(["kerple", "dape-kerple concat_residual", "dape-rope", "dape-v2-kerple"]))
    inputs, causal = draw_any(data)
    tile_bytes(data.draw(st.sampled_from([1, 4096, 40_000, 1 << 20])))
    assert_equivalent(label, inputs, causal=causal)


def draw_any(data: st.DataObject) -> tuple[Inputs, bool]:
    """Inputs, and whether they are for causal attention."""
    queries, keys = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    shapes = {"batch": st.integers(1, 4), "kv_heads": st.sampled_from([1, 2, 4]), "value_width": st.integers(1, 9)}
    inputs = draw(queries, keys, **data.draw(st.fixed_dictionaries(shapes)))
    causal = data.draw(st.booleans())
    if queries > keys and not causal:
        at(inputs, 0, 0)
    if causal:  # at least one key comes before the last query
        first_query = data.draw(st.integers(max(0, 5 - queries), 60))
        at(inputs, first_query, data.draw(st.integers(0, first_query + queries - 1)))
    if data.draw(st.booleans()):
        generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
        inputs.call["key_padding_mask"] = torch.rand(len(inputs.q), keys, generator=generator) < 0.3
    return inputs, causal


# The compiled kernel -------------------------------------------------------------------------------------------------

COMPILED = [case for case in CASES if case[0] not in KERNELS["row blocks"]]


@pytest.fixture
def compiled(monkeypatch):
    """Terms of FIRE come in blocks of few rows."""
    if reason := why_not_compiled(torch.empty(0)):
        pytest.skip(reason)
    monkeypatch.setattr(Cpp, "block_bytes", 1)
    monkeypatch.setattr(Cpp, "fewest_rows", 7)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("label", "causal", "t"), thinned(len(SIZES), CASES, SIZES))
def test_compiled_square(label, causal, t):
    assert_near(label, draw(t, batch=1 if t > 64 else 2), impl="fused", causal=causal)


ALWAYS, NEVER = 0, 1 << 40  # threads take whole items and lay them out themselves


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("label", "causal", "situation", "many_items"),
    thinned(
        5,
        [case for case in COMPILED if case[0] in {*KERNELS["lag tables"], *KERNELS["lag ramps"]}],
        [*SITUATIONS],
        [ALWAYS, NEVER],
    ),
)
def test_compiled_situations(label, causal, situation, many_items, monkeypatch):
    monkeypatch.setattr(run, "MANY_ITEMS", many_items)
    assert_near(label, SITUATIONS[situation](), impl="fused", causal=causal)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("length", [17, 33])
@pytest.mark.parametrize("causal", [True, False])
def test_compiled_rows_of_whole_vectors_and_one_key(length, causal):
    """Nearly a whole vector of a row's terms lies beyond its last key: what is read there must weigh nothing."""
    assert_near("dape-fire", different_for_each_item(length), impl="fused", causal=causal)


@settings(deadline=None, derandomize=True, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_compiled_any_shape(compiled, monkeypatch, data):
    monkeypatch.setattr(run, "MANY_ITEMS", data.draw(st.sampled_from([ALWAYS, NEVER])))
    label = data.draw(st.sampled_from(["kerple", "dape-kerple concat_residual", "dape-rope", "fire", "dape-fire"]))
    inputs, causal = draw_any(data)
    assert_near(label, inputs, impl="fused", causal=causal)


@settings(deadline=None, derandomize=True, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_compiled_any_mixer(compiled, monkeypatch, data):
    """Other numbers of heads and hidden units, and other widths, than all the other tests have."""
    monkeypatch.setattr(run, "MANY_ITEMS", data.draw(st.sampled_from([ALWAYS, NEVER])))
    heads, hidden, width = (data.draw(st.integers(1, most)) for most in (64, 70, 40))
    queries, batch = data.draw(st.integers(1, 75)), data.draw(st.integers(1, 3))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    q, k, v = (torch.randn(batch, heads, queries, width) for _ in range(3))

    def mixer(label: str, dtype: torch.dtype) -> PositionalEncoding:
        torch.manual_seed(1)
        return dape.build(label, num_heads=heads, head_dim=width, train_length=32, hidden=hidden).to(dtype)

    assert_near("dape-kerple", Inputs(q, k, v), impl="fused", make=mixer, causal=data.draw(st.booleans()))


def assert_rows_before_the_first_key_are_zero(impl: str, label: str) -> None:
    inputs = at(draw(13, 19), 0, 6).to(torch.float32)
    seen = outputs_and_gradients(impl, make(label, torch.float32), inputs)
    assert (seen["output"][:, :, :6] == 0).all() and (seen["output"][:, :, 6:] != 0).any()
    assert (seen["q"][:, :, :6] == 0).all()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("label", ["kerple", "dape-kerple concat_residual", "dape-fire"])
def test_compiled_rows_before_the_first_key_are_zero(label):
    assert_rows_before_the_first_key_are_zero("fused", label)


def assert_half_precision_is_rounded_once(label: str, dtype: torch.dtype) -> None:
    """Inputs are read and results written in half precision, everything between is float32."""
    pe, inputs = make(label, torch.float32), draw(21).to(dtype)
    half = outputs_and_gradients("fused", pe, inputs)
    single = outputs_and_gradients("fused", pe, inputs.to(torch.float32))
    assert half["output"].dtype == half["k"].dtype == dtype
    torch.testing.assert_close(half["output"], single["output"].to(dtype), rtol=0, atol=0)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("label", ["dape-kerple concat_residual", "dape-fire"])
def test_compiled_half_precision_is_rounded_once(label, dtype):
    assert_half_precision_is_rounded_once(label, dtype)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("impl", ["fused", "blocked"])
@pytest.mark.parametrize("label", ["dape-alibi", "dape-fire"])
def test_gradients_of_f_in_half_precision(label, impl):
    """A row of the logits' gradient sums to 0, and what a rounded output leaves of it is multiplied by B: with ALiBi,
    hundreds."""
    torch.manual_seed(0)
    pe = dape.build(label, num_heads=HEADS, head_dim=WIDTH, train_length=32)
    inputs = draw(301).to(torch.bfloat16)
    towards = torch.randn(inputs.v.shape).to(torch.bfloat16)

    def gradients(impl: str, given: Inputs) -> tuple[Tensor, ...]:
        out = dape.attention(given.q, given.k, given.v, pe, impl=impl)
        return torch.autograd.grad(
            out, [pe.get_parameter(f"f.{x}.weight") for x in ("first", "second")], towards.to(out)
        )

    half, pe = gradients(impl, inputs), pe.double()
    for found, exact in zip(half, gradients("reference", inputs.to(torch.float64)), strict=True):
        assert (found - exact).abs().max() < 5e-4 * exact.abs().max()


def assert_same_weights_in_both_passes(impl: str, label: str, queries: int, size: float) -> None:
    """The output is linear in v, so dO . O = dV . V whatever the weights are, if only they are the same: also where
    scores are so large that another order of their sums, or the logarithm of the softmax's, is another weight."""
    inputs = draw(queries, 75).to(torch.float32)
    nearly_equal = 1 + torch.randn(inputs.k.shape[:3]).unsqueeze(-1) / size
    inputs = replace(inputs, q=size * inputs.q, k=inputs.k[:, :, :1] * nearly_equal, v=inputs.v.abs())
    found = outputs_and_gradients(impl, make(label, torch.float32), inputs, rows=torch.ones(1))
    towards = torch.randn(
        found["output"].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    ).float()
    forward, backward = (towards * found["output"]).sum((2, 3)), (found["v"] * inputs.v).sum((2, 3))
    assert (forward - backward).abs().max() < 2e-6 * (towards.abs() * found["output"]).sum((2, 3)).max()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("impl", "many_items", "queries", "size", "label"),
    thinned(
        4,
        [("blocked", NEVER), ("fused", ALWAYS), ("fused", NEVER)],
        [1, 5, 8, 9, 75],
        [1.0, 3e4, 1e6, 1e8],
        ["kerple", "dape-kerple concat_residual", "dape-fire"],
    ),
)
def test_both_passes_have_the_same_weights(impl, many_items, queries, size, label, monkeypatch, tile_bytes):
    monkeypatch.setattr(run, "MANY_ITEMS", many_items)
    tile_bytes(4096)
    assert_same_weights_in_both_passes(impl, label, queries, size)


def assert_same_bits_every_time(impl: str, label: str, inputs: Inputs, times: int = 3) -> None:
    pe, inputs = make(label, torch.float32), inputs.to(torch.float32)
    first = outputs_and_gradients(impl, pe, inputs)
    for _ in range(times):
        again = outputs_and_gradients(impl, pe, inputs)
        assert all(torch.equal(again[name], first[name]) for name in first)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("label", ["kerple", "dape-kerple concat_residual", "dape-fire"])
@pytest.mark.parametrize("batch", [1, 5, 13])
def test_compiled_same_bits_every_time(label, batch):
    assert_same_bits_every_time("fused", label, draw(150, batch=batch))


@pytest.mark.usefixtures("compiled")
def test_compiled_hands_on_nans():
    """Training must notice that it has diverged."""
    pe, inputs = make("dape-kerple concat_residual", torch.float32), draw(21).to(torch.float32)
    inputs.q[0, 1, 17, 2] = torch.nan
    out = dape.attention(inputs.q, inputs.k, inputs.v, pe, impl="fused")
    assert out[0, :, 17].isnan().all() and out[0, :, :17].isfinite().all() and out[1].isfinite().all()
