"""Our own products and the layers made of them against float64, and when PyTorch's are taken instead."""

import math
import warnings

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from dape.ops.products import library
from dape.ops.products.feed_forward import feed_forward
from dape.ops.products.linear import Linear, across, linear, times, times_turned

needs_compiled = pytest.mark.skipif(not library.run.usable(torch.empty(0)), reason="no C++ compiler")
SHAPES = [(1, 1, 32), (5, 7, 64), (6, 256, 32), (97, 257, 96), (193, 600, 32), (389, 31, 160)]
"""Rows, depth, columns: around tiles of 6 rows, bands of 96, blocks of 192 and 256; up to 32 columns make a panel."""


@pytest.fixture
def ours(monkeypatch, one_thread):
    """Wherever this runs; what is not ours fails."""
    monkeypatch.setattr(library, "measured", lambda _: True)
    monkeypatch.setattr(library, "FEW_ROWS", 1)
    for name in ("mm", "addmm"):
        monkeypatch.setattr(torch, name, lambda *_: pytest.fail("PyTorch's product"))
    monkeypatch.setattr(nn.functional, "linear", lambda *_: pytest.fail("PyTorch's product"))


def close(actual: torch.Tensor, exact: torch.Tensor) -> None:
    torch.testing.assert_close(actual.double(), exact, rtol=1e-5, atol=1e-5 * math.sqrt(max(exact.shape)))


@needs_compiled
@pytest.mark.parametrize(("rows", "depth", "columns"), SHAPES)
def test_products(rows, depth, columns, ours):
    torch.manual_seed(0)
    a, b, c = torch.randn(rows, depth), torch.randn(depth, columns), torch.randn(rows, columns)
    close(times(a, b), a.double() @ b.double())
    close(times_turned(a, b.t().contiguous()), a.double() @ b.double())
    close(across(a, c), a.double().t() @ c.double())
    # Any strides.
    close(times(a.t().contiguous().t(), b.t().contiguous().t()), a.double() @ b.double())
    close(across(a.t().contiguous().t(), c.t().contiguous().t()), a.double().t() @ c.double())


@needs_compiled
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(2, 5, 64), (101, 64)])
def test_layer_and_gradients(shape, bias, ours):
    torch.manual_seed(0)
    layer = Linear(64, 96, bias=bias)
    wide = torch.randn(*shape[:-1], 128, requires_grad=True)
    weights = torch.randn(*shape[:-1], 96)
    inputs = [wide, *layer.parameters()]
    actual = layer(wide[..., ::2])  # rows that are not consecutive
    exact = wide.double()[..., ::2] @ layer.weight.double().t() + (layer.bias.double() if bias else 0)
    close(actual.detach(), exact.detach())
    found, wanted = (torch.autograd.grad((y * weights).sum(), inputs) for y in (actual, exact))
    for mine, theirs in zip(found, wanted, strict=True):
        close(mine, theirs.double())


@needs_compiled
@pytest.mark.parametrize(
    ("rows", "width", "inner"), [(1, 32, 32), (6, 64, 96), (101, 32, 288), (193, 288, 64), (390, 32, 64)]
)
@pytest.mark.parametrize("whole", [True, False])
def test_feed_forward(rows, width, inner, whole, monkeypatch, one_thread):
    monkeypatch.setattr(library, "measured", lambda _: whole)
    monkeypatch.setattr(library, "FEW_ROWS", 1)
    torch.manual_seed(0)
    shapes = ((rows, width), (inner, width), (inner,), (width, inner), (width,))
    inputs = [(torch.randn(shape) / math.sqrt(shape[-1])).requires_grad_() for shape in shapes]
    x, w1, b1, w2, b2 = (z.double() for z in inputs)
    exact = (x @ w1.t() + b1).relu() @ w2.t() + b2
    actual = feed_forward(*inputs)
    assert ("Whole" in type(actual.grad_fn).__name__) == whole
    close(actual.detach(), exact.detach())
    d = torch.randn(width, rows).t()  # strides of its own
    again, found, wanted = (
        torch.autograd.grad((y * d).sum(), inputs, retain_graph=True) for y in (actual, actual, exact)
    )
    for mine, once_more, theirs in zip(found, again, wanted, strict=True):
        assert torch.equal(mine, once_more)
        close(mine, theirs.double())


@needs_compiled
def test_what_is_not_a_number_stays_so(ours):
    ones = torch.ones(32, 32)
    x = torch.ones(3, 32).requires_grad_()
    with torch.no_grad():
        x[1, 5] = math.nan
    y = feed_forward(x, ones, torch.zeros(32), ones, torch.zeros(32))
    assert y.isnan().any(1).tolist() == [False, True, False]


@needs_compiled
def test_bias_gradients_of_many_rows(ours):
    """Sums of 40,000 numbers near 1, one after the other, would be wrong in the fifth digit."""
    torch.manual_seed(0)
    x, w, dy = torch.ones(40_000, 32), torch.eye(32), 1 + torch.rand(40_000, 32) / 8
    b1, b2 = torch.zeros(32, requires_grad=True), torch.zeros(32, requires_grad=True)
    y = feed_forward(x, w, b1, w, b2)
    for found in torch.autograd.grad(y, (b1, b2), dy):
        torch.testing.assert_close(found.double(), dy.double().sum(0), rtol=1e-6, atol=0)


@needs_compiled
def test_only_gradients_that_are_asked_for(ours, monkeypatch):
    layer, x = Linear(32, 32, bias=False), torch.randn(5, 32)
    y = layer(x)
    monkeypatch.setattr("dape.ops.products.linear.times", lambda *_: pytest.fail("a gradient of x"))
    (found,) = torch.autograd.grad(y.sum(), layer.weight)
    close(found, x.double().sum(0).expand(32, 32))


@needs_compiled
def test_no_memory(ours, monkeypatch):
    library.usable(torch.empty(0), rows=0, widths=())  # loaded
    monkeypatch.setattr(library.run.library, "dape_across", lambda *_: 1)
    with pytest.raises(MemoryError, match=r"dape_across needs, with sizes \(5, 3, 32\)"):
        across(torch.randn(5, 3), torch.randn(5, 32))


# Where PyTorch's are taken ------------------------------------------------------------------------------------------


@pytest.fixture
def not_ours(monkeypatch, one_thread):
    monkeypatch.setattr(library, "measured", lambda _: True)
    monkeypatch.setattr(library, "FEW_ROWS", 1)
    monkeypatch.setattr(library, "run", lambda *_: pytest.fail("ours"))


CASES = ["threads", "float64", "no columns to a panel", "no rows", "few rows", "another processor"]


@pytest.mark.parametrize("case", CASES)
def test_pytorch_elsewhere(case, monkeypatch, not_ours):
    monkeypatch.setattr(library, "measured", lambda _: case != "another processor")
    monkeypatch.setattr(library, "FEW_ROWS", 6 if case == "few rows" else 1)
    torch.set_num_threads(2 if case == "threads" else 1)
    depth, columns = (33, 35) if "columns" in case else (32, 64)
    rows = 0 if case == "no rows" else 5
    torch.manual_seed(0)
    dtype = torch.float64 if case == "float64" else torch.float32
    a, b = torch.randn(rows, depth, dtype=dtype), torch.randn(depth, columns, dtype=dtype)
    torch.testing.assert_close(times(a, b), a @ b)
    torch.testing.assert_close(times_turned(a, b.t().contiguous()), a @ b)
    torch.testing.assert_close(linear(a, b.t(), None), a @ b)
    torch.testing.assert_close(across(a, a @ b), a.t() @ (a @ b))
    y = feed_forward(a, b.t(), b[0], b, b[:, 0])
    torch.testing.assert_close(y, (a @ b + b[0]).relu() @ b.t() + b[:, 0])


@pytest.mark.parametrize(
    "call",
    [
        lambda: times(torch.randn(5, 48), torch.randn(32, 64)),
        lambda: times_turned(torch.randn(5, 48), torch.randn(64, 32)),
        lambda: across(torch.randn(50, 48), torch.randn(32, 64)),
        lambda: linear(torch.randn(3, 8), torch.randn(64, 32), None),
        lambda: linear(torch.randn(3, 32), torch.randn(64, 32), torch.randn(3)),
        lambda: linear(torch.randn(3, 32), torch.randn(64, 32), torch.randn(64).double()),
        lambda: feed_forward(*(torch.randn(s) for s in ((3, 32), (64, 32), (64,), (16, 64), (32,)))),
        lambda: feed_forward(*(torch.randn(s) for s in ((3, 32), (64, 32), (3,), (32, 64), (32,)))),
        lambda: feed_forward(*(torch.randn(s) for s in ((2, 3, 32), (64, 32), (64,), (32, 64), (32,)))),
    ],
)
def test_what_does_not_fit_is_an_error(call, monkeypatch, one_thread):
    monkeypatch.setattr(library, "measured", lambda _: True)
    monkeypatch.setattr(library, "FEW_ROWS", 1)
    with pytest.raises(RuntimeError):
        call()


def test_somebody_watches_pytorch(not_ours):
    """Who records or replaces operations has to see them."""
    layer, x = Linear(32, 64), torch.randn(2, 3, 32)
    exact = nn.functional.linear(x, layer.weight, layer.bias)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        traced = torch.jit.trace(layer, x, check_trace=False)
    torch.testing.assert_close(traced(x), exact)
    torch.testing.assert_close(torch.vmap(layer)(x), exact)
    torch.testing.assert_close(layer(torch.complex(x, -x).conj().imag), exact)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    with FlopCounterMode(display=False) as counter:
        layer(x)
    assert counter.get_total_flops() == 2 * 6 * 32 * 64
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert layer(mode.from_tensor(x)).shape == (2, 3, 64)


@pytest.mark.compile
def test_one_graph_under_compile(not_ours):
    layer, x = Linear(32, 64), torch.randn(3, 32)
    torch.testing.assert_close(
        torch.compile(layer, backend="eager", fullgraph=True)(x), nn.functional.linear(x, layer.weight, layer.bias)
    )


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        ("model name : AMD EPYC 7763\nflags : fma avx avx2", True),
        ("model name : AMD EPYC 9654\nflags : fma avx avx2 avx512f", False),
        ("model name : Intel(R) Xeon(R)\nflags : fma avx avx2", False),
        ("model name : AMD A10", False),
    ],
)
def test_choice(processor, expected):
    assert library.measured(processor) == expected
