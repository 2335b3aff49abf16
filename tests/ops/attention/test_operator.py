"""The public operator: what it chooses and says, what it refuses, and how exact it is in every dtype."""

import pytest
import torch
from torch import Tensor

import dape
from dape.ops.attention import operator
from dape.ops.attention.engines import cpp
from dape.ops.attention.fused import library
from dape.ops.attention.fused.available import why_not_compiled

HEADS, WIDTH = 4, 8


def make(name: str, dtype: torch.dtype = torch.float32, **options):
    torch.manual_seed(0)
    return dape.build(name, num_heads=HEADS, head_dim=WIDTH, train_length=16, **options).to(dtype)


def draw(queries: int = 9, keys: int | None = None, *, batch: int = 2, kv_heads: int = HEADS, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    keys = queries if keys is None else keys
    shapes = (batch, HEADS, queries, WIDTH), (batch, kv_heads, keys, WIDTH), (batch, kv_heads, keys, WIDTH)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


# Choices -------------------------------------------------------------------------------------------------------------

COMPILED = "blocked" if why_not_compiled(torch.empty(0)) else "fused"
SCATTERED = {"q_pos": torch.arange(9) * 2, "k_pos": torch.arange(9) * 2}
DOCUMENTS = {"q_document": torch.arange(9) // 5, "k_document": torch.arange(9) // 5}


@pytest.mark.parametrize(
    ("name", "impl", "call", "expected", "reason"),
    [
        ("rope", "auto", {}, ("sdpa", "torch sdpa"), "plain scores"),
        ("nope", "auto", {"causal": False}, ("sdpa", "torch sdpa"), "exact"),
        ("learned", "sdpa", {}, ("sdpa", "torch sdpa"), "asked for"),
        ("rope", "blocked", {}, ("blocked", "lag tables"), "only on the lag"),
        ("rope", "auto", SCATTERED, (COMPILED, "bias tiles"), "not one consecutive run"),
        ("rope", "auto", DOCUMENTS, (COMPILED, "bias tiles"), "not one consecutive run"),
        ("kerple", "auto", {}, (COMPILED, "lag tables"), "one table serves all rows"),
        ("dape-kerple", "auto", {}, (COMPILED, "lag tables"), "one table serves all rows"),
        ("dape-rope", "auto", {}, (COMPILED, "lag tables"), "one table serves all rows"),
        ("randomized-dape-alibi", "auto", {}, (COMPILED, "lag tables"), "one table serves all rows"),
        ("dape-fire", "auto", {}, (COMPILED, "lag ramps"), "piecewise linear"),
        ("fire", "blocked", {}, ("blocked", "lag ramps"), "piecewise linear"),
        ("dape-fire", "auto", SCATTERED, (COMPILED, "bias tiles"), "not one consecutive run"),
        ("dape-v2-fire", "auto", {}, ("reference", "whole matrix"), "no closed form"),
        ("cope", "blocked", {}, ("blocked", "row blocks"), "whole rows"),
        ("transformer-xl", "auto", SCATTERED, ("reference", "whole matrix"), "small"),
        ("dape-v2-kerple", "blocked", {}, ("blocked", "row blocks"), "no closed form"),
        ("dape-kerple", "reference", {}, ("reference", "whole matrix"), "asked for"),
    ],
)
def test_choice_and_reason(name, impl, call, expected, reason):
    pe, inputs = make(name), draw()
    torch.manual_seed(5)
    out, choice = dape.attention(*inputs, pe, impl=impl, explain=True, **call)
    assert (choice.impl, choice.kernel) == expected
    assert reason in choice.reason
    torch.manual_seed(5)  # a randomised encoding draws from here
    assert torch.equal(dape.attention(*inputs, pe, impl=impl, **call), out)


@pytest.mark.skipif(COMPILED != "fused", reason="the kernel cannot be compiled here")
def test_the_compiled_kernel_runs_where_it_is_asked_for():
    """Even where ``auto`` has something faster."""
    inputs, pe = draw(), make("rope")
    out, choice = dape.attention(*inputs, pe, impl="fused", explain=True)
    assert (choice.impl, choice.kernel) == ("fused", "lag tables")
    torch.testing.assert_close(out, dape.attention(*inputs, pe, impl="reference"))


@pytest.mark.skipif(COMPILED != "fused", reason="the kernel cannot be compiled here")
@pytest.mark.parametrize(("call", "kernel"), [({}, "lag tables"), (SCATTERED, "bias tiles")])
def test_what_was_chosen_is_what_runs(call, kernel, monkeypatch):
    """Tiles give the same numbers, later."""
    calls, real = [], library.run
    monkeypatch.setattr(library, "run", lambda name, *structures: (calls.append(name), real(name, *structures)))
    chosen = dape.attention(*draw(), make("kerple"), explain=True, **call)[1]
    assert (chosen.impl, chosen.kernel, calls) == ("fused", kernel, ["dape_forward"])


@pytest.mark.parametrize(
    ("name", "queries", "keys", "causal", "compiled", "short"),
    [
        ("kerple", 48, 48, False, False, True),
        ("kerple", 48, 48, False, True, False),
        ("fire", 48, 48, False, False, True),
        ("fire", 49, 49, False, False, False),
        ("fire", 48, 48, False, True, False),
        ("kerple", 1, 9, False, False, True),
        ("kerple", 9, 9, True, False, False),
        ("dape-kerple", 9, 9, False, False, False),
    ],
)
def test_few_keys_with_a_bias_are_computed_at_once(name, queries, keys, causal, compiled, short, monkeypatch):
    monkeypatch.setattr(operator, "WIDE", WIDTH)
    if not compiled:
        monkeypatch.setattr(cpp, "why_not_compiled", lambda q: "it is not")
    elif reason := why_not_compiled(torch.empty(0)):
        pytest.skip(reason)
    inputs = draw(queries, keys)
    out, choice = dape.attention(*inputs, make(name), causal=causal, explain=True)
    assert (choice.kernel == "whole matrix") == short and ("few keys" in choice.reason) == short
    torch.testing.assert_close(out, dape.attention(*inputs, make(name), causal=causal, impl="blocked"))


def test_narrow_heads_are_not():
    assert dape.attention(*draw(), make("kerple"), causal=False, explain=True)[1].kernel == "lag tables"


@pytest.mark.parametrize("name", ["kerple", "dape-kerple", "dape-fire"])
@pytest.mark.parametrize("impl", ["auto", "blocked"])
def test_an_empty_batch_has_gradients(name, impl):
    inputs = [x.requires_grad_() for x in draw(batch=0)]
    out = dape.attention(*inputs, make(name), impl=impl)
    out.sum().backward()
    assert out.shape == inputs[0].shape and all(x.grad is not None and x.grad.shape == x.shape for x in inputs)


def test_many_items_of_few_keys_are_not(monkeypatch):
    monkeypatch.setattr(operator, "WIDE", WIDTH)
    monkeypatch.setattr(operator, "SHORT_CELLS", 2 * HEADS * 9 * 9 - 1)
    assert dape.attention(*draw(), make("kerple"), causal=False, explain=True)[1].kernel == "lag tables"


def test_many_cells_without_closed_form_are_computed_in_blocks(monkeypatch):
    pe, inputs = make("dape-v2-fire"), draw()
    monkeypatch.setattr(operator, "SMALL_CELLS", 2 * HEADS * 9 * 9 - 1)
    assert dape.attention(*inputs, pe, explain=True)[1].kernel == "row blocks"


@pytest.mark.parametrize(("keys", "kernel"), [(256, "whole matrix"), (257, "row blocks")])
def test_blocks_begin_beyond_a_matrix_of_a_quarter_of_a_million(keys, kernel):
    q, k = (torch.empty(1).expand(1, 4, length, 8) for length in (256, keys))
    assert operator.choose(q, k, k, dape.Grid.of_length(256, keys, causal=True), None, "auto").kernel == kernel


@pytest.mark.parametrize("impl", ["auto", "reference", "blocked"])
def test_attention_is_causal_unless_asked(impl):
    inputs, pe = draw(), make("kerple")
    assert torch.equal(dape.attention(*inputs, pe, impl=impl), dape.attention(*inputs, pe, impl=impl, causal=True))


@pytest.mark.parametrize(("width", "kernel"), [(31, "lag ramps"), (32, "whole matrix")])
def test_heads_of_32_are_wide(width, kernel, monkeypatch):
    monkeypatch.setattr(cpp, "why_not_compiled", lambda q: "it is not")
    pe = dape.build("fire", num_heads=2, head_dim=width, train_length=16)
    inputs = [torch.randn(1, 2, 9, width) for _ in range(3)]
    assert dape.attention(*inputs, pe, causal=False, explain=True)[1].kernel == kernel


# PyTorch's fused attention -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["rope", "nope", "yarn", "sinusoidal"])
@pytest.mark.parametrize("situation", ["square", "one row", "chunk", "padding", "shared heads", "far", "early"])
def test_sdpa_is_exact(name, situation, causal):
    pe, call, inputs = make(name, torch.float64), {"causal": causal}, draw(9, dtype=torch.float64)
    match situation:
        case "one row":
            inputs = draw(1, 21, dtype=torch.float64)
        case "chunk":
            inputs = draw(5, 21, dtype=torch.float64)
        case "padding":
            mask = torch.zeros(2, 9, dtype=torch.bool)
            mask[0, :3], mask[1] = True, True
            call["key_padding_mask"] = mask
        case "shared heads":
            inputs = draw(9, kv_heads=2, dtype=torch.float64)
        case "far":
            call |= {"q_pos": torch.arange(30, 39), "k_pos": torch.arange(9)}
        case "early":
            call |= {"q_pos": torch.arange(9), "k_pos": torch.arange(4, 13)}
    inputs = [x.requires_grad_() for x in inputs]
    results = {}
    for impl in ("reference", "sdpa"):
        out, choice = dape.attention(*inputs, pe, impl=impl, explain=True, **call)
        assert choice.impl == impl
        results[impl] = [out, *torch.autograd.grad(out, inputs, torch.ones_like(out))]
    for actual, expected in zip(results["sdpa"], results["reference"], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "call"), [("kerple", {}), ("dape-rope", {}), ("cope", {}), ("rope", SCATTERED), ("rope", DOCUMENTS)]
)
def test_sdpa_is_refused_where_it_would_be_wrong(name, call):
    with pytest.raises(ValueError, match=r"impl='sdpa' is exact only .* use impl='auto'"):
        dape.attention(*draw(), make(name), impl="sdpa", **call)


# Bad input -----------------------------------------------------------------------------------------------------------

LONG = torch.arange(9)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"q": lambda q: q[0]}, ValueError, r"must be \[batch, heads, tokens, width\], got q \(4, 9, 8\)"),
        ({"k": lambda k: k[:1]}, ValueError, "same batch size"),
        ({"k": lambda k: k[:, :2]}, ValueError, "same heads and tokens"),
        ({"v": lambda v: v[:, :, :5]}, ValueError, "same heads and tokens"),
        ({"k": lambda k: k[..., :4]}, ValueError, "same width"),
        ({"k": lambda k: k[:, :3], "v": lambda v: v[:, :3]}, ValueError, "4 query heads cannot share 3 key heads"),
        ({"k": lambda k: k[:, :0], "v": lambda v: v[:, :0]}, ValueError, "4 query heads cannot share 0 key heads"),
        ({"q": lambda q: q[:, :2]}, ValueError, "2 query heads cannot share 4"),
        (dict.fromkeys("qkv", lambda x: x[:, :2]), ValueError, "built for 4 heads of width 8, but q has 2 heads"),
        ({"q": lambda q: q[..., :6], "k": lambda k: k[..., :6]}, ValueError, "but q has 4 heads of width 6"),
        ({"q": Tensor.double}, TypeError, "same floating dtype, got torch.float64, torch.float32"),
        ({"v": Tensor.bfloat16}, TypeError, "same floating dtype"),
        (dict.fromkeys("qkv", Tensor.long), TypeError, "floating dtype"),
        ({"v": lambda v: v.to("meta")}, ValueError, "on one device, got cpu, cpu, meta"),
        (dict.fromkeys("qkv", lambda x: x.to("meta")), ValueError, "q is on meta, the encoding's r1 on cpu"),
    ],
)
def test_bad_tensors(change, error, message):
    q, k, v = (change.get(name, lambda x: x)(x) for name, x in zip("qkv", draw(), strict=True))
    with pytest.raises(error, match=message):
        dape.attention(q, k, v, make("kerple"))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            {"impl": "flash"},
            ValueError,
            "'flash' is not known; choose one of auto, reference, blocked, fused, triton, sdpa",
        ),
        ({"impl": "triton"}, ValueError, "impl='triton' is not possible"),
        ({"q_pos": LONG}, ValueError, "both q_pos and k_pos"),
        ({"k_pos": LONG}, ValueError, "both q_pos and k_pos"),
        ({"q_document": LONG}, ValueError, "both q_document and k_document"),
        ({"q_pos": LONG.float(), "k_pos": LONG}, TypeError, "q_pos must hold integers, got torch.float32"),
        ({"q_pos": LONG, "k_pos": LONG > 3}, TypeError, "k_pos must hold integers, got torch.bool"),
        ({"q_pos": LONG, "k_pos": LONG[:5]}, ValueError, r"k_pos must be \[9\] or \[2, 9\], got \[5\]"),
        ({"q_pos": LONG.expand(3, 9), "k_pos": LONG}, ValueError, r"q_pos must be \[9\] or \[2, 9\], got \[3, 9\]"),
        ({"q_pos": LONG.to("meta"), "k_pos": LONG}, ValueError, "q_pos is on meta, q on cpu"),
        ({"q_document": LONG, "k_document": LONG[:3]}, ValueError, "k_document must be"),
        ({"q_document": LONG.double(), "k_document": LONG}, TypeError, "q_document must hold integers"),
        (
            {"key_padding_mask": torch.zeros(2, 9)},
            TypeError,
            "must be boolean with True for padding, got torch.float32",
        ),
        ({"key_padding_mask": torch.zeros(9) > 0}, ValueError, r"\[batch, keys\] = \[2, 9\], got \[9\]"),
        ({"key_padding_mask": torch.zeros(2, 8) > 0}, ValueError, r"got \[2, 8\]"),
        ({"key_padding_mask": (torch.zeros(2, 9) > 0).to("meta")}, ValueError, "key_padding_mask is on meta"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        dape.attention(*draw(), make("kerple"), **call)


def test_not_an_encoding():
    with pytest.raises(TypeError, match=r"as dape.build\(name, ...\) gives; got str"):
        dape.attention(*draw(), "kerple")


@pytest.mark.parametrize("causal", [True, False])
def test_more_queries_than_keys_need_positions(causal):
    q, k, v = draw(9, 4)
    with pytest.raises(ValueError, match="9 queries but only 4 keys"):
        dape.attention(q, k, v, make("kerple"), causal=causal)
    positions = {"q_pos": torch.arange(9), "k_pos": torch.arange(4)}
    assert dape.attention(q, k, v, make("kerple"), causal=causal, **positions).isfinite().all()


@pytest.mark.parametrize("name", ["rope", "kerple", "dape-kerple", "dape-fire", "cope", "dape-v2-kerple"])
@pytest.mark.parametrize("impl", ["auto", "reference", "blocked"])
@pytest.mark.parametrize(("batch", "queries", "keys"), [(2, 0, 0), (2, 0, 5), (0, 5, 5)])
def test_nothing_to_do(name, impl, batch, queries, keys):
    inputs = draw(queries, keys, batch=batch)
    assert dape.attention(*inputs, make(name), impl=impl).shape == (batch, HEADS, queries, WIDTH)


def test_no_keys_at_all():
    positions = {"q_pos": torch.arange(5), "k_pos": torch.arange(0)}
    out = dape.attention(*draw(5, 0), make("kerple"), **positions)
    assert out.shape == (2, HEADS, 5, WIDTH) and (out == 0).all()


@pytest.mark.parametrize("name", ["rope", "kerple", "dape-kerple", "dape-fire", "cope", "dape-v2-kerple"])
def test_a_single_token_sees_itself(name):
    q, k, v = draw(1)
    torch.testing.assert_close(dape.attention(q, k, v, make(name)), v)


@pytest.mark.parametrize("impl", ["reference", "blocked"])
@pytest.mark.parametrize("name", ["kerple", "dape-kerple", "dape-fire"])
def test_broken_parameters_are_named(name, impl):
    pe = make(name)
    parameter, value = next(iter(pe.named_parameters()))
    value.data.fill_(torch.nan)
    with pytest.raises(ValueError, match=rf"the encoding's {parameter} is not.*diverged"):
        dape.attention(*draw(), pe, impl=impl)


@pytest.mark.parametrize("impl", ["reference", "blocked"])
def test_broken_inputs_pass(impl):
    """Loss scaling relies on seeing them in the gradients."""
    q, k, v = draw()
    v[0, 0, 0, 0] = torch.nan
    assert dape.attention(q, k, v, make("kerple"), impl=impl)[0, 0, 0].isnan().any()


INTEGERS = [torch.int8, torch.int16, torch.int32, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
PLACES = {  # of queries and keys; differences leave the range of 8 bits, and below 0 that of unsigned numbers
    "with gaps": (torch.arange(9), torch.arange(9) * 2 + 1),
    "one run": (torch.arange(9), torch.arange(9) + 7),
    "far apart": (torch.arange(100, 109), torch.arange(9) * 2),
    "on both sides of 0": (torch.arange(100, 109), torch.arange(-100, -91)),
}


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("impl", ["reference", "blocked", "fused", "auto"])
@pytest.mark.parametrize("name", ["rope", "t5", "alibi", "fire", "transformer-xl", "dape-kerple", "randomized-kerple"])
def test_integers_of_any_width_mean_the_same_positions(name, impl, dtype):
    if impl == "fused" and name == "transformer-xl":
        pytest.skip("no closed form")
    pe = make(name)
    pe = pe.draw(120, torch.Generator().manual_seed(0)) if name.startswith("randomized") else pe
    inputs = draw()
    for q_pos, k_pos in PLACES.values():
        if k_pos.min() < 0 and (not dtype.is_signed or name.startswith("randomized")):
            continue
        for narrow_q, narrow_k in ((dtype, dtype), (dtype, torch.int64), (torch.int64, dtype)):
            given = {"q_pos": q_pos.to(narrow_q), "k_pos": k_pos.to(narrow_k)}
            actual = dape.attention(*inputs, pe, **given, causal=False, impl=impl)
            expected = dape.attention(*inputs, pe, q_pos=q_pos, k_pos=k_pos, causal=False, impl=impl)
            assert torch.equal(actual, expected), given


@pytest.mark.parametrize("impl", ["reference", "blocked", "fused"])
def test_int32_differences_do_not_wrap(impl):
    """One run each, 3e9 apart: the offset does not fit 32 bits."""
    inputs, pe = draw(), make("t5")
    q_pos, k_pos = torch.arange(9) + 15 * 10**8, torch.arange(9) - 15 * 10**8
    actual = dape.attention(*inputs, pe, q_pos=q_pos.int(), k_pos=k_pos.int(), impl=impl)
    assert torch.equal(actual, dape.attention(*inputs, pe, q_pos=q_pos, k_pos=k_pos, impl=impl))
    assert (actual != 0).all(), "every key lies in the past"


@pytest.mark.parametrize("impl", ["reference", "blocked"])
def test_documents_do_not_see_each_other(impl):
    """The first of two packed documents is computed as if alone; the second keeps its positions, and lags decide."""
    (q, k, v), pe = draw(), make("kerple")
    packed = dape.attention(q, k, v, pe, causal=False, impl=impl, **DOCUMENTS)
    for part in (slice(0, 5), slice(5, 9)):
        alone = dape.attention(*(x[:, :, part] for x in (q, k, v)), pe, causal=False)
        torch.testing.assert_close(packed[:, :, part], alone)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_documents_may_be_numbered_with_any_integers(dtype):
    inputs, pe, document = draw(), make("dape-fire"), torch.arange(9) // 4
    narrow = {"q_document": document.to(dtype), "k_document": document.to(dtype)}
    actual = dape.attention(*inputs, pe, **narrow, causal=False)
    expected = dape.attention(*inputs, pe, q_document=document, k_document=document, causal=False)
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("position", [2**62, -(2**62), 2**53 + 1])
def test_positions_whose_differences_would_wrap_are_refused(position):
    far = torch.tensor([position])
    with pytest.raises(ValueError, match=rf"q_pos must lie between -2\^53 and 2\^53, got {position}"):
        dape.attention(*draw(1), make("alibi"), q_pos=far, k_pos=torch.zeros(1, dtype=torch.long))
    with pytest.raises(ValueError, match="k_pos must lie between"):
        make("alibi").bias(torch.zeros(1, dtype=torch.long), far)


def test_unsigned_positions_beyond_int64_are_refused():
    with pytest.raises(ValueError, match=r"q_pos must lie between .* got 18446744073709551615"):
        dape.attention(
            *draw(1), make("alibi"), q_pos=torch.tensor([2**64 - 1], dtype=torch.uint64), k_pos=torch.arange(1)
        )


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", ["rope", "dape-kerple", "dape-v2-fire", "cope"])
def test_intermediates_at_integers_of_any_width(name, dtype):
    inputs, pe = draw()[:2], make(name)
    q_pos, k_pos = torch.arange(100, 109), torch.arange(9)
    actual = dape.intermediates(*inputs, pe, q_pos=q_pos.to(dtype), k_pos=k_pos.to(dtype))
    assert torch.equal(actual.logits, dape.intermediates(*inputs, pe, q_pos=q_pos, k_pos=k_pos).logits)


@pytest.mark.parametrize("start", [-3, 5])
@pytest.mark.parametrize("name", ["randomized-rope", "randomized-alibi", "randomized-dape-kerple", "randomized-cope"])
def test_randomised_positions_without_a_draw_begin_at_0(name, start):
    """-3 would be read as the third last of what is drawn."""
    at = torch.arange(9) + start
    for call in (
        lambda: dape.attention(*draw(), make(name), q_pos=at, k_pos=at),
        lambda: dape.intermediates(*draw()[:2], make(name), q_pos=at, k_pos=at),
    ):
        with pytest.raises(ValueError, match=f"Fix one draw.*begin at {start}"):
            call()
    dape.attention(*draw(), make(name), q_pos=torch.arange(9), k_pos=torch.arange(9))


# Half precision ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("impl", ["reference", "blocked"])
@pytest.mark.parametrize(
    "name", ["kerple", "alibi", "dape-kerple", "dape-alibi", "dape-fire", "cope", "dape-v2-kerple"]
)
def test_half_precision_is_only_rounded_at_the_end(name, impl, dtype):
    """The encoding stays in float32; the exact result is that of float64 on the same rounded inputs."""
    pe, inputs = make(name), draw(64, dtype=torch.float32)
    half = [x.to(dtype) for x in inputs]
    out = dape.attention(*half, pe, impl=impl)
    exact = dape.attention(*(x.double() for x in half), pe.double(), impl="reference")
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["rope", "nope", "dape-rope"])
def test_half_precision_queries_stay_half(name, dtype):
    """Rotated queries and keys are rounded to their own dtype, as everywhere; PyTorch rounds weights as well."""
    pe, inputs = make(name), [x.to(dtype) for x in draw(64)]
    exact = dape.attention(*(x.double() for x in inputs), pe.double(), impl="reference")
    for impl in ("reference", "blocked", "auto"):
        out = dape.attention(*inputs, make(name), impl=impl)
        assert out.dtype == dtype
        assert (out - exact).abs().max() < 4 * torch.finfo(dtype).eps * exact.abs().max()


@pytest.mark.parametrize("impl", ["reference", "blocked"])
@pytest.mark.parametrize("name", ["kerple", "dape-kerple", "dape-fire"])
def test_gradients_keep_the_dtype_of_what_they_belong_to(name, impl):
    pe, inputs = make(name), [x.bfloat16().requires_grad_() for x in draw(33)]
    double = [x.detach().double().requires_grad_() for x in inputs]
    dape.attention(*inputs, pe, impl=impl).float().square().sum().backward()
    reference = make(name, torch.float64)
    dape.attention(*double, reference, impl="reference").square().sum().backward()
    pairs = [*zip(inputs, double, strict=True), *zip(pe.parameters(), reference.parameters(), strict=True)]
    largest = max(exact.grad.abs().max() for _, exact in pairs)
    for x, exact in pairs:
        assert x.grad.dtype == x.dtype
        assert (x.grad - exact.grad).abs().max() < 0.01 * largest


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["transformer-xl", "cope", "dape-v2-nope"])
def test_gradients_of_many_blocks_are_added_in_float32(name, dtype, tile_bytes):
    """All weights are equal, and every block of 8 rows adds the same to the gradient of a value, 125 times: in half
    precision too small a part of it from some point on."""
    tile_bytes(1)
    pe = make(name)
    with torch.no_grad():
        for parameter in pe.parameters():
            parameter.zero_()
    call = {"q_pos": torch.full((1000,), 9), "k_pos": torch.arange(9), "impl": "blocked"}
    k = torch.randn(1, HEADS, 9, WIDTH).to(dtype)
    q, v = torch.zeros(1, HEADS, 1000, WIDTH, dtype=dtype), torch.zeros_like(k, requires_grad=True)
    out = dape.attention(q, k, v, pe, **call)
    towards = torch.full_like(out, 0.07)
    out.backward(towards)
    exact = 1000 / 9 * towards[0, 0, 0, 0].double()
    assert (v.grad.double() / exact - 1).abs().max() < torch.finfo(dtype).eps  # a block's part is rounded, and the sum


@pytest.mark.parametrize("name", ["transformer-xl", "cope"])
def test_gradients_of_half_precision_weights_are_added_in_float32(name, tile_bytes):
    """1000 queries that are alike, 8 rows a block: every block adds the same to the gradients of the weights."""
    tile_bytes(1)
    pe, double = make(name).to(torch.bfloat16), make(name, torch.float64)
    double.load_state_dict(pe.state_dict())
    torch.manual_seed(0)
    q = torch.randn(1, HEADS, 1, WIDTH).expand(-1, -1, 1000, -1).to(torch.bfloat16)
    k, v = (torch.randn(1, HEADS, 9, WIDTH).to(torch.bfloat16) for _ in range(2))
    call = {"q_pos": torch.full((1000,), 9), "k_pos": torch.arange(9)}
    towards = torch.randn(1, HEADS, 1, WIDTH).expand(-1, -1, 1000, -1)
    dape.attention(q, k, v, pe, impl="blocked", **call).backward(towards.to(torch.bfloat16))
    exact = dape.attention(q.double(), k.double(), v.double(), double, impl="reference", **call)
    exact.backward(towards.to(torch.bfloat16).double())
    for (label, p), other in zip(pe.named_parameters(), double.parameters(), strict=True):
        assert p.grad is not None and other.grad is not None
        assert (p.grad - other.grad).abs().max() < 0.02 * other.grad.abs().max(), label


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own use of it
@pytest.mark.parametrize("name", ["kerple", "dape-kerple", "fire"])
def test_forward_mode_is_refused_rather_than_zero(name):
    q, k, v = draw()
    pe = make(name)
    with pytest.raises(NotImplementedError, match="impl='reference'"):
        torch.func.jvp(lambda x: dape.attention(x, k, v, pe, impl="blocked"), (q,), (torch.ones_like(q),))
    derivative = torch.func.jvp(lambda x: dape.attention(x, k, v, pe, impl="reference"), (q,), (torch.ones_like(q),))
    assert (derivative[1] != 0).any()


def test_an_override_in_a_subclass_is_not_bypassed():
    """The closed form belongs to the class that wrote it; a subclass with hooks of its own gets these."""

    class Striped(type(make("alibi"))):
        def bias_on(self, grid):
            return super().bias_on(grid) - 5.0 * (grid.k_pos % 2)

    class Halved(dape.Dape):
        def logits(self, scores, q, k, grid):
            return super().logits(scores, q, k, grid) / 2

    base = make("kerple")
    for pe in (Striped(base.dims).double(), Halved(base.dims, base).double()):
        inputs = [x.double() for x in draw()]
        expected = dape.attention(*inputs, pe, impl="reference")
        torch.testing.assert_close(dape.attention(*inputs, pe, impl="blocked"), expected)


def test_equal_positions_of_all_items_count_as_one_run():
    positions = torch.arange(9).expand(2, -1)
    call = {"q_pos": positions, "k_pos": positions, "impl": "blocked"}
    _, choice = dape.attention(*draw(), make("kerple"), explain=True, **call)
    assert choice.kernel == "lag tables"


@pytest.mark.parametrize(("shape", "message"), [((9, 9, 4), "heads first"), ((9, 9), "heads first")])
def test_a_bias_with_its_axes_elsewhere_is_refused(shape, message):
    class Odd(dape.AdditiveBias):
        def bias_on(self, grid):
            return torch.zeros(shape, dtype=torch.float64)

    with pytest.raises(ValueError, match=message):
        dape.attention(*draw(), Odd(make("kerple").dims), impl="blocked")
