"""Run by test_triton.py in a process with TRITON_INTERPRET=1, which triton reads when kernels are imported."""

import os
from collections.abc import Callable

import pytest
import torch
from tests.ops.attention import test_separable as separable
from tests.ops.attention.test_equivalence import (
    CASES,
    KERNELS,
    SITUATIONS,
    Inputs,
    assert_near,
    assert_rows_before_the_first_key_are_zero,
    assert_same_bits_every_time,
    assert_same_weights_in_both_passes,
    draw,
    make,
    outputs_and_gradients,
)

import dape
from dape.ops.attention.engines.triton import Triton
from dape.ops.attention.triton_kernels import available, kernels, plan, run
from dape.ops.attention.triton_kernels.interpreted import INTERPRETED
from dape.positional.base import PositionalEncoding

assert INTERPRETED and os.environ["TRITON_INTERPRET"] == "1"

COMPILED = [case for case in CASES if case[0] not in KERNELS["row blocks"]]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Terms of FIRE come in blocks of few rows, and few keys are split already."""
    monkeypatch.setattr(Triton, "block_bytes", 1)
    monkeypatch.setattr(run, "SPLIT_KEYS", 32)


def of_sizes(heads: int, kv_heads: int, width: int, queries: int, keys: int, *, batch: int = 2) -> Inputs:
    torch.manual_seed(heads)
    q, k = torch.randn(batch, heads, queries, width), torch.randn(batch, kv_heads, keys, width)
    return Inputs(q, k, torch.randn(batch, kv_heads, keys, width))


def with_hidden(heads: int, width: int, hidden: int) -> Callable[[str, torch.dtype], PositionalEncoding]:
    def make(label: str, dtype: torch.dtype) -> PositionalEncoding:
        torch.manual_seed(1)
        return dape.build(label, num_heads=heads, head_dim=width, train_length=32, hidden=hidden).to(dtype)

    return make


@pytest.mark.parametrize(
    ("batch", "heads", "kv_heads", "width", "hidden", "queries", "keys", "causal"),
    [(2, 3, 3, 16, 4, 17, 33, False), (1, 8, 2, 80, 33, 18, 33, True), (1, 12, 12, 64, 32, 19, 19, True)],
)
def test_sizes(batch, heads, kv_heads, width, hidden, queries, keys, causal):
    inputs = of_sizes(heads, kv_heads, width, queries, keys, batch=batch)
    inputs.call["key_padding_mask"] = torch.rand(batch, keys) < 0.2
    assert_near("dape-kerple", inputs, impl="triton", make=with_hidden(heads, width, hidden), causal=causal)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "heads", "kv_heads", "width", "hidden", "queries", "keys", "causal"),
    [
        ("dape-kerple", 12, 4, 64, 32, 35, 66, True),
        ("dape-fire", 8, 8, 80, 33, 40, 71, False),
        ("dape-fire", 17, 1, 64, 64, 20, 40, True),
        ("dape-kerple", 32, 8, 128, 32, 17, 33, False),
    ],
)
def test_large_sizes(name, heads, kv_heads, width, hidden, queries, keys, causal):
    """Several tiles of 16 rows and of keys. A combination takes ten seconds: each size has one bias and one mask."""
    inputs = of_sizes(heads, kv_heads, width, queries, keys, batch=1)
    assert_near(name, inputs, impl="triton", make=with_hidden(heads, width, hidden), causal=causal)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "values", "queries", "keys"),
    [(3, 1, 80, 16, 5, 9), (2, 2, 16, 40, 18, 20), pytest.param(2, 1, 16, 40, 1, 33, id="decoding")],
)
def test_widths_that_programs_share(monkeypatch, heads, kv_heads, width, values, queries, keys):
    """What is too wide for shared memory is multiplied in pieces; several programs have columns of the result."""
    monkeypatch.setitem(plan.ROOM, "large", 2048)  # as if there were 32 heads
    monkeypatch.setattr(plan, "USUAL_ROW_BYTES", 1024)
    sizes = plan.Sizes(heads=heads, group=1, width=width, values=values, hidden=8, item_bytes=4)
    assert sizes.piece(128) == 16 and max(sizes.shares(width), sizes.shares(values)) > 1 and sizes.fits
    inputs = of_sizes(heads, kv_heads, width, queries, keys, batch=1)
    inputs = Inputs(inputs.q, inputs.k, torch.randn(1, kv_heads, keys, values), inputs.call)
    assert_near("dape-kerple", inputs, impl="triton", make=with_hidden(heads, width, 8))


FAST = [
    *(("dape-kerple concat_residual", True, situation) for situation in SITUATIONS),
    *(("dape-fire", False, situation) for situation in ["positions of each item", "padding", "one key head"]),
    ("dape-fire", True, "keys with gaps"),
]


@pytest.mark.parametrize(("label", "causal", "situation"), FAST)
def test_situations(label, causal, situation):
    assert_near(label, SITUATIONS[situation](), impl="triton", causal=causal)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "causal", "situation"),
    [
        (label, causal, situation)
        for label, causal in COMPILED
        for situation in SITUATIONS
        if label in {*KERNELS["lag tables"], *KERNELS["lag ramps"]} and (label, causal, situation) not in FAST
    ][::5],  # every label in both directions, and every situation
)
def test_other_situations(label, causal, situation):
    assert_near(label, SITUATIONS[situation](), impl="triton", causal=causal)


SQUARES = [case for case in COMPILED if "randomized" not in case[0]]


@pytest.mark.parametrize(("label", "causal"), SQUARES[::3])
def test_one_row(label, causal):
    assert_near(label, draw(1), impl="triton", causal=causal)


@pytest.mark.slow
@pytest.mark.parametrize(("label", "causal"), [case for n, case in enumerate(SQUARES) if case[1] == (n // 2 % 2 == 0)])
def test_square(label, causal):
    """Three tiles of rows; a label in one direction, the next one in the other."""
    assert_near(label, draw(37), impl="triton", causal=causal)


@pytest.mark.parametrize(("label", "rows"), [("dape-kerple concat_residual", 1), ("dape-fire", 3)])
def test_decoding_splits_the_keys(label, rows):
    inputs = draw(rows, 75)
    inputs.call["key_padding_mask"] = torch.zeros(2, 75, dtype=torch.bool)
    inputs.call["key_padding_mask"][1, 14:70] = True  # a part without any key
    assert_near(label, inputs, impl="triton")


def test_rows_before_the_first_key_are_zero():
    assert_rows_before_the_first_key_are_zero("triton", "dape-kerple concat_residual")


ROUNDING = {dtype: torch.finfo(dtype).eps / 2 for dtype in (torch.float16, torch.bfloat16)}
"""The largest relative error of rounding to that dtype. The interpreter cuts bfloat16 off instead: twice as much."""


def assert_rounded_few_times(pe: PositionalEncoding, inputs: Inputs, *, outputs: float, gradients: float) -> None:
    """Errors, of the largest entry of a tensor, in units of one rounding. Inputs are in half precision."""
    unit = ROUNDING[inputs.q.dtype]
    half = outputs_and_gradients("triton", pe, inputs)
    assert half["output"].dtype == half["k"].dtype == inputs.q.dtype
    exact = outputs_and_gradients("reference", pe.double(), inputs.to(torch.float64))
    largest = max(value.abs().max().item() for value in exact.values())
    for name, value in exact.items():
        error = (half[name] - value).abs().max() / max(value.abs().max().item(), 1e-3 * largest)
        assert error < unit * (outputs if name == "output" else gradients), (name, error / unit)


@pytest.mark.parametrize("label", ["dape-kerple concat_residual", "dape-fire"])
@pytest.mark.parametrize("dtype", list(ROUNDING))
def test_half_precision(label, dtype):
    assert_rounded_few_times(make(label, torch.float32), draw(21).to(dtype), outputs=2, gradients=4)


HALF = [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)]


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_far_away(dtype, monkeypatch):
    """One query of dape-alibi against 8192 keys, where B reaches -4096. With hidden units rounded it was off by 36% of
    the largest output in bfloat16, and by 6% in float16. Now weights and outputs are rounded, once each."""
    monkeypatch.setattr(run, "SPLIT_KEYS", 1024)
    monkeypatch.setattr(plan.Sizes, "forward_keys", 512)  # the interpreter takes its time for every tile
    torch.manual_seed(1)
    pe = dape.build("dape-alibi", num_heads=12, head_dim=64, train_length=512)
    q, k, v = (torch.randn(1, 12, t, 64).to(dtype) for t in (1, 8192, 8192))
    exact = dape.attention(q.double(), k.double(), v.double(), pe.double(), impl="reference")
    found = dape.attention(q, k, v, pe.float(), impl="triton")
    assert (found - exact).abs().max() < 2 * ROUNDING[dtype] * exact.abs().max()


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(("seed", "keys", "step"), [(1, 300, 1), (0, 30, 10)])
def test_gradients_in_half_precision_far_away(dtype, seed, keys, step, monkeypatch):
    """Of tables over lags, and with steps of a term per cell. Before, gradients of f were off by 60 and 10 units."""
    monkeypatch.setattr(run, "ROWS", 32)
    torch.manual_seed(seed)
    pe = dape.build("dape-alibi", num_heads=12, head_dim=16, train_length=512, hidden=8)
    inputs = Inputs(*(torch.randn(1, 12, t, 16).to(dtype) for t in (3, keys, keys)))
    inputs.call = {"q_pos": step * torch.arange(keys - 3, keys), "k_pos": step * torch.arange(keys)}
    assert_rounded_few_times(pe, inputs, outputs=2, gradients=4)


@pytest.mark.parametrize("dtype", list(ROUNDING))
def test_large_scores_in_half_precision(dtype):
    """Scores beyond float16's 65504."""
    inputs = draw(5, 21)
    inputs = Inputs(300 * inputs.q, 300 * inputs.k, inputs.v).to(dtype)
    found = dape.attention(
        inputs.q, inputs.k, inputs.v, make("dape-kerple concat_residual", torch.float32), impl="triton"
    )
    exact = dape.attention(*(x.double() for x in (inputs.q, inputs.k, inputs.v)), make("dape-kerple concat_residual"))
    assert (found - exact).abs().max() < 2 * ROUNDING[dtype] * exact.abs().max()


@pytest.mark.parametrize("label", ["kerple", "dape-kerple concat_residual", "dape-fire"])
@pytest.mark.parametrize(("queries", "size"), [(5, 3e4), pytest.param(18, 1e6, marks=pytest.mark.slow)])
def test_both_passes_have_the_same_weights(label, queries, size, monkeypatch):
    monkeypatch.setattr(plan.Sizes, "forward_keys", 16)  # numpy sums scores of other tiles in another order
    assert_same_weights_in_both_passes("triton", label, queries, size)


def test_same_bits_every_time():
    assert_same_bits_every_time("triton", "dape-kerple concat_residual", draw(18), times=1)


def test_hands_on_nans():
    pe, inputs = make("dape-kerple concat_residual", torch.float32), draw(21).to(torch.float32)
    inputs.q[0, 1, 17, 2] = torch.nan
    out = dape.attention(inputs.q, inputs.k, inputs.v, pe, impl="triton")
    assert out[0, :, 17].isnan().all() and out[0, :, :17].isfinite().all() and out[1].isfinite().all()


@pytest.mark.parametrize(
    ("heads", "width", "hidden", "dtype", "message"),
    [
        (40, 8, 8, torch.float32, "at most 32; q has 40"),
        (2, 136, 8, torch.float32, "width 128 at most, q has 136"),
        (2, 8, 65, torch.float32, "64 hidden units at most, f has 65"),
        (2, 8, 8, torch.float64, "q is torch.float64"),
    ],
)
def test_what_does_not_fit_is_refused(heads, width, hidden, dtype, message):
    q = torch.zeros(1, heads, 3, width, dtype=dtype)
    pe = with_hidden(heads, width, hidden)("dape-kerple", dtype)
    with pytest.raises(ValueError, match=message):
        dape.attention(q, q, q, pe, impl="triton")


@pytest.mark.parametrize(
    ("gpu", "heads", "dtype", "refused"),
    [
        ("large", 32, torch.float32, None),
        ("small", 32, torch.float16, None),
        ("small", 32, torch.float32, "32 heads and 8 hidden units in torch.float32 do not fit into the shared memory"),
        ("amd", 17, torch.float32, "17 heads and 8 hidden units in torch.float32 do not fit"),
        ("amd", 16, torch.float32, None),
        (None, 2, torch.float16, "need 101376 bytes of shared memory"),
    ],
)
def test_what_a_gpu_has_no_room_for_is_refused(gpu, heads, dtype, refused, monkeypatch):
    monkeypatch.setattr(available, "gpu_of", lambda device: gpu)
    q = torch.empty(1, heads, 3, 128, dtype=dtype, device="meta")
    why = available.why_no_room(q, q, with_hidden(heads, 128, 8)("dape-kerple", torch.float32).score_form())
    assert why is None if refused is None else refused in why


@pytest.mark.parametrize(("beside", "f"), [("", "concat_residual"), pytest.param("kerple", "", marks=pytest.mark.slow)])
def test_separable(beside, f):
    """Evaluated on cells, in blocks of rows."""
    inputs, pe = separable.draw(2, 19, 19), separable.make(19, 19, batch=2, beside=beside, f=f)
    separable.assert_near(inputs, pe, "triton")


def test_a_processor_is_not_chosen_to_interpret():
    pe, inputs = make("dape-kerple concat_residual", torch.float32), draw(9).to(torch.float32)
    _, choice = dape.attention(inputs.q, inputs.k, inputs.v, pe, explain=True)
    assert choice.impl != "triton"


@pytest.mark.parametrize("mix", [False, True])
def test_fake_kernels_tell_the_truth(mix):
    """Shapes, dtypes and strides, which torch.compile relies on."""
    inputs, heads = draw(9, 12).to(torch.float32), 4
    tables = [
        torch.randn(heads, 20),
        *((torch.randn(8, heads), torch.randn(8, 20), torch.randn(heads, 8)) if mix else [None] * 3),
    ]
    call = (inputs.q, inputs.k, inputs.v, *tables, *[None] * 7, 3, True, "triton")  # no ramps, sinks, padding
    torch.library.opcheck(torch.ops.dape.lag_attention.default, call, test_utils=("test_schema", "test_faketensor"))
    out, lse = torch.ops.dape.lag_attention(*call)
    backward = (torch.ones_like(out), out, lse, *call, True)
    torch.library.opcheck(torch.ops.dape.lag_attention_backward.default, backward, test_utils=("test_faketensor",))


def test_kernels_are_interpreted():
    assert "Interpreted" in type(kernels.forward).__name__
