"""Ramps: FIRE as a piecewise linear function of one number per cell, in every engine, against the definition."""

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

import dape
from dape.ops.attention.fused import library, run
from dape.ops.attention.fused.available import why_not_compiled
from dape.ops.attention.lag_tables import lag_attention
from dape.ops.attention.memory import LagMemory
from dape.positional.fire import Fire
from dape.positional.gated import Gated

HEADS, KV_HEADS, WIDTH = 4, 2, 8
ENGINES = ["blocked", "fused", "fused, shared"]


def make(name: str = "fire", length: int = 16, **options):
    torch.manual_seed(0)
    return dape.build(name, num_heads=HEADS, head_dim=WIDTH, train_length=length, **options)


def fire_of(pe) -> Fire:
    return pe if isinstance(pe, Fire) else pe.base


def draw(queries: int, keys: int | None = None, *, batch: int = 2, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(queries)
    shapes = [(HEADS, queries, WIDTH), (KV_HEADS, keys or queries, WIDTH), (KV_HEADS, keys or queries, 5)]
    return [torch.randn(batch, *shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def results(inputs: list[Tensor], pe, **call) -> dict[str, Tensor]:
    out, choice = dape.attention(*inputs, pe, explain=True, **call)
    assert choice.kernel == ("whole matrix" if call["impl"] == "reference" else "lag ramps")
    towards = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    names = ["q", "k", "v", *(name for name, _ in pe.named_parameters())]
    found = torch.autograd.grad(out, [*inputs, *pe.parameters()], towards)
    return {"out": out.detach(), **dict(zip(names, found, strict=True))}


def assert_near(inputs: list[Tensor], pe, engine: str, *, half: float = 0.0, **call) -> None:
    """1e-5 for the output, 1e-4 for gradients, each of the largest entry of its kind, against float64."""
    actual = results(inputs, pe, impl=engine, **call)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = results(exact, copy.deepcopy(pe).double(), impl="reference", **call)
    of_parameters = max(float(x.abs().max()) for name, x in expected.items() if name not in ("out", "q", "k", "v"))
    rows = inputs[0].shape[0] * inputs[0].shape[2]
    for name, x in expected.items():
        largest = float(x.abs().max()) if name in ("out", "q", "k", "v") else of_parameters
        # Some are exactly 0: those of a row's logits add up to that, but for a rounding or two of float32 in each row.
        allowed = ((1e-5 if name == "out" else 1e-4) + half) * max(largest, 0.25, 1e-3 * rows)
        torch.testing.assert_close(actual[name].double(), x, rtol=0, atol=allowed, msg=lambda m, n=name: f"{n}: {m}")


@pytest.fixture(params=ENGINES)
def engine(request, monkeypatch) -> str:
    """Its name. "shared": cells are evaluated once for all items of a call, however few they are."""
    name, *shared = request.param.split(", ")
    if name == "fused" and (reason := why_not_compiled(torch.empty(0))):
        pytest.skip(reason)
    monkeypatch.setattr(run, "SHARED_ITEMS", 1 if shared else 1 << 30)
    return name


@pytest.mark.skipif(why_not_compiled(torch.empty(0)) is not None, reason="needs the compiled kernel")
@pytest.mark.parametrize(("items", "length", "shared"), [(16, 20, True), (15, 20, False), (16, 300, False)])
def test_many_items_share_cells_that_fit_the_cache(monkeypatch, items, length, shared):
    called = []
    real = library.run
    monkeypatch.setattr(library, "run", lambda name, *structures: (called.append(name), real(name, *structures)))
    inputs = draw(length, batch=items)
    dape.attention(*inputs, make("dape-fire"), impl="fused").sum().backward()
    of_cells = ["dape_ramp_cells"] if shared else []
    assert called == [
        *of_cells,
        "dape_forward",
        *of_cells,
        "dape_backward",
        *(["dape_ramp_backward"] if shared else []),
    ]


def coinciding_kinks(fire: Fire) -> None:
    fire.first.bias.copy_(-0.3 * fire.first.weight.squeeze(1))


def kinks_at_zero(fire: Fire) -> None:
    """The diagonal, where the distance is 0, lies on all of them."""
    fire.first.bias.zero_()


def constant_units(fire: Fire) -> None:
    fire.first.weight.zero_()


def some_constant_units(fire: Fire) -> None:
    fire.first.weight[::3] = 0


def tiny_weights(fire: Fire) -> None:
    fire.first.weight.mul_(1e-30)


def steep_weights(fire: Fire) -> None:
    fire.first.weight.mul_(50)


def no_scale(fire: Fire) -> None:
    fire.c.zero_()


def tiny_scale(fire: Fire) -> None:
    fire.c.fill_(1e-9)


def huge_scale(fire: Fire) -> None:
    fire.c.fill_(-1e6)


def short_threshold(fire: Fire) -> None:
    fire.threshold_multiplier.fill_(0.1)


def no_threshold(fire: Fire) -> None:
    fire.threshold_multiplier.zero_()


def long_threshold(fire: Fire) -> None:
    fire.threshold_multiplier.fill_(-1000.0)


EXTREMES = [coinciding_kinks, kinks_at_zero, constant_units, some_constant_units, tiny_weights, steep_weights]
EXTREMES += [no_scale, tiny_scale, huge_scale, short_threshold, no_threshold, long_threshold]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["fire", "dape-fire"])
@pytest.mark.parametrize("extreme", EXTREMES, ids=lambda change: change.__name__)
def test_extreme_parameters(extreme, name, causal, engine):
    pe = make(name)
    with torch.no_grad():
        extreme(fire_of(pe))
    assert_near(draw(41), pe, engine, causal=causal)


@st.composite
def any_call(draw_from):
    """An encoding with up to two extremes at once, inputs, and the rest of a call that ramps serve."""
    pe = make(
        draw_from(st.sampled_from(["fire", "dape-fire"])),
        draw_from(st.integers(1, 200)),
        mlp_width=draw_from(st.sampled_from([1, 2, 7, 32])),
        bidirectional=draw_from(st.sampled_from(["past_bonus", "symmetric", "tril"])),
        activation=draw_from(st.sampled_from(["relu", "leaky_relu"])),
    )
    with torch.no_grad():
        for change in draw_from(st.lists(st.sampled_from(EXTREMES), max_size=2, unique=True)):
            change(fire_of(pe))
    queries, more = draw_from(st.integers(1, 80)), draw_from(st.integers(0, 70))
    inputs = draw(queries, queries + more, batch=draw_from(st.sampled_from([1, 2, 9])))
    call: dict[str, object] = {"causal": draw_from(st.booleans())}
    if draw_from(st.booleans()):
        call["key_padding_mask"] = torch.rand(len(inputs[0]), queries + more) < 0.2
    if draw_from(st.booleans()):
        start = draw_from(st.integers(0, 300))
        if draw_from(st.booleans()):  # items that begin elsewhere, at the same distance from their keys
            start = start + 17 * torch.arange(len(inputs[0])).unsqueeze(1)
        call["k_pos"] = start + torch.arange(queries + more)
        call["q_pos"] = start + draw_from(st.integers(-5, more + 5)) + 5 + torch.arange(queries)
    return pe, inputs, call


EVERY_ENGINE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(deadline=None, derandomize=True, max_examples=15, suppress_health_check=EVERY_ENGINE)
@given(one=any_call())
def test_any_call(engine, one):
    pe, inputs, call = one
    assert_near(inputs, pe, engine, **call)


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=60, suppress_health_check=EVERY_ENGINE)
@given(one=any_call())
def test_many_calls(engine, one):
    pe, inputs, call = one
    assert_near(inputs, pe, engine, **call)


@pytest.mark.parametrize("name", ["fire", "dape-fire", "dape-fire concat", "dape-fire add_residual"])
@pytest.mark.parametrize("causal", [True, False])
def test_float64(name, causal, three_workers, tile_bytes):
    """Many tiles, several workers, and every gradient to twelve digits."""
    tile_bytes(4096)
    name, *variant = name.split()
    pe = make(name, **({"variant": variant[0]} if variant else {})).double()
    inputs = draw(43, batch=3, dtype=torch.float64)
    mask = torch.zeros(3, 43, dtype=torch.bool)
    mask[1, :20] = True
    call = {"causal": causal, "key_padding_mask": mask}
    expected, actual = (results(inputs, pe, impl=impl, **call) for impl in ("reference", "blocked"))
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("dtype", "unit"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-11)])
def test_half_precision(dtype, unit, engine):
    """Inputs and outputs are rounded, nothing on the way is."""
    assert_near(draw(41, dtype=dtype), make("dape-fire"), engine, half=2 * unit)


def test_slope_at_a_kink_is_that_of_the_definition(engine):
    """At distance 0 every unit is at its kink, rising ones and falling ones: no gradient of a ReLU there."""
    pe = make()
    with torch.no_grad():
        kinks_at_zero(pe)
        pe.c.zero_()  # every distance is 0
    assert not results(draw(9), pe, impl=engine)["first.bias"].any()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_gradcheck_of_slopes_levels_table_and_rows(causal, shared, three_workers, tile_bytes):
    """Levels of their own, so that the function jumps at its kinks: every gradient stands for itself."""
    tile_bytes(512)
    generator, queries, keys, pieces = torch.Generator().manual_seed(0), 7, 9, 4
    shapes = [(2, HEADS, queries, 3), (2, KV_HEADS, keys, 3), (2, KV_HEADS, keys, 3), (2, pieces, HEADS), (5, HEADS)]
    shapes += [(2, pieces, 5), (HEADS, 5), (queries + keys - 1,), (1 if shared else 2, queries)]
    inputs = [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]
    names = ("static", "wa", "pre", "w2", "table", "rows")
    kinks = torch.tensor([-0.51, 0.13, 0.72], dtype=torch.float64)

    def attention(q: Tensor, k: Tensor, v: Tensor, *terms: Tensor) -> Tensor:
        given = dict(zip(names, terms, strict=True))
        return lag_attention(q, k, v, **given, kinks=kinks, offset=2, causal=causal, key_padding_mask=None)

    assert gradcheck(attention, inputs, fast_mode=True, nondet_tol=0.0)


@pytest.mark.parametrize("name", ["fire", "dape-fire"])
def test_decoding_from_kept_tables(name, engine):
    """Token by token and past the threshold, with one table for all tokens; then with other parameters."""
    pe, (q, k, v) = make(name, 12), [x.detach() for x in draw(300, batch=1)]
    whole, memory = dape.attention(q, k, v, pe, impl="reference"), LagMemory()
    with torch.no_grad():
        for t in (1, 5, 11, 12, 13, 255, 256, 257, 300):
            out = dape.attention(q[:, :, t - 1 : t], k[:, :, :t], v[:, :, :t], pe, memory=memory, impl=engine)
            torch.testing.assert_close(out, whole[:, :, t - 1 : t], rtol=1e-4, atol=1e-5)
        fire_of(pe).c.mul_(3)
        expected = dape.attention(q[:, :, -3:], k, v, pe, impl="reference")
        actual = dape.attention(q[:, :, -3:], k, v, pe, memory=memory, impl=engine)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_the_same_bits_twice(engine, three_workers):
    pe, inputs = make("dape-fire"), draw(90)
    first, second = (results(inputs, pe, impl=engine) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_gate_before_it(engine):
    """As in adapters: the pieces are those of FIRE, times a number per head."""
    fire = make()
    pe = Gated(fire.dims, fire)
    torch.nn.init.uniform_(pe.gate, -2, 2)
    assert_near(draw(41), pe, engine)


def test_a_layer_of_another_kind_is_called_and_not_read():
    """A perceptron without biases has no pieces as they are made here."""
    pe = make()
    pe.first = type(pe.first)(1, 32, bias=False)
    inputs = [x.detach() for x in draw(9)]
    out, choice = dape.attention(*inputs, pe, impl="blocked", explain=True)
    assert choice.kernel == "bias tiles"
    torch.testing.assert_close(out, dape.attention(*inputs, pe, impl="reference"))
