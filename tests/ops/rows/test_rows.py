"""The compiled functions on rows against PyTorch's own operations in float64."""

import math

import pytest
import torch
from torch import nn

from dape.ops.rows import library
from dape.ops.rows.add_norm import add_norm
from dape.ops.rows.bias_relu import bias_relu_, bias_relu_backward_
from dape.ops.rows.dropout import Dropout

needs_compiled = pytest.mark.skipif(not library.usable(torch.empty(0)), reason="no C++ compiler")
SHAPES = [(3, 5, 64), (1, 1, 1), (7, 13), (2, 33, 19), (0, 4, 8), (2, 0, 8)]


@pytest.fixture(params=[1, 3])
def threads(request, one_thread) -> int:
    torch.set_num_threads(request.param)
    return request.param


def norm_for(width: int, dtype: torch.dtype) -> nn.LayerNorm:
    norm = nn.LayerNorm(width, eps=1e-3, dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn(width, generator=generator))
    return norm


@needs_compiled
@pytest.mark.parametrize("p", [0.0, 0.25])
@pytest.mark.parametrize("shape", SHAPES)
def test_add_norm(shape, p, threads):
    torch.manual_seed(0)
    x, y, weights = torch.randn(3, *shape)
    dropout = Dropout.draw(y, p, torch.Generator().manual_seed(2))
    assert (dropout is None) == (p == 0)
    found = []
    for dtype in (torch.float32, torch.float64):
        inputs = [z.to(dtype).requires_grad_() for z in (x, y)]
        norm = norm_for(shape[-1], dtype)
        assert library.usable(*inputs) == (dtype == torch.float32)
        out = add_norm(*inputs, norm, dropout)
        found.append((out, *torch.autograd.grad((out * weights).sum(), [*inputs, *norm.parameters()])))
    for mine, exact in zip(*found, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=2e-5)


@needs_compiled
def test_add_norm_takes_any_strides_and_goes_back_twice():
    x, y = torch.randn(4, 9, 16).requires_grad_(), torch.randn(16, 3, 4).requires_grad_()
    part, turned, norm = x[:, -3:], y.permute(2, 1, 0), norm_for(16, torch.float32)
    out = add_norm(part, turned, norm, None)
    torch.testing.assert_close(out, norm(part + turned))
    grad = torch.randn(16, 4, 3).permute(1, 2, 0)
    found = [torch.autograd.grad(out, (x, y), grad, retain_graph=True) for _ in range(2)]
    wanted = torch.autograd.grad(norm(part + turned), (x, y), grad)
    for mine, again, exact in zip(*found, wanted, strict=True):
        assert torch.equal(mine, again)
        torch.testing.assert_close(mine, exact)


@needs_compiled
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if len(shape) == 2] + [(0, 5), (40, 129)])
def test_bias_relu(shape, threads):
    torch.manual_seed(0)
    x, bias, d = torch.randn(shape), torch.randn(shape[-1]), torch.randn(shape)
    x[:1, :1] = math.nan
    wanted = (x + bias).relu()
    out = bias_relu_(x.clone(), bias)
    torch.testing.assert_close(out, wanted, equal_nan=True)
    grad = d.clone()
    d_bias = bias_relu_backward_(grad, out)
    passed = torch.where(out <= 0, 0.0, d)
    assert torch.equal(grad, passed)
    torch.testing.assert_close(d_bias.double(), passed.double().sum(0), rtol=1e-5, atol=1e-5)


@needs_compiled
def test_what_is_not_a_number_comes_out():
    x = torch.zeros(2, 4)
    x[1, 2] = math.nan
    out = add_norm(x, torch.zeros(2, 4), norm_for(4, torch.float32), None)
    assert out[0].isfinite().all() and out[1].isnan().all()


@needs_compiled
def test_what_the_kernel_cannot_take_is_computed_all_the_same():
    """Broadcast, without weights, with weights that are not consecutive; and torch's default dtype does not matter."""
    x, y = torch.randn(3, 4, 8), torch.randn(4, 8)
    torch.testing.assert_close(add_norm(x, y, nn.LayerNorm(8), None), nn.functional.layer_norm(x + y, (8,)))
    plain = nn.LayerNorm(8, elementwise_affine=False)
    torch.testing.assert_close(add_norm(x, x, plain, None), plain(x + x))
    strided = norm_for(8, torch.float32)
    strided.weight = nn.Parameter(torch.randn(16)[::2])
    torch.testing.assert_close(add_norm(x, x, strided, None), strided(x + x))
    norm = norm_for(8, torch.float32)
    torch.set_default_dtype(torch.float64)
    try:
        found = torch.autograd.grad(add_norm(x, x, norm, None).square().sum(), list(norm.parameters()))
    finally:
        torch.set_default_dtype(torch.float32)
    wanted = torch.autograd.grad(norm(x + x).square().sum(), list(norm.parameters()))
    for mine, exact in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, exact)


# Dropout -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(40, 50, 60), (3, 7, 11)])
def test_dropout_keeps_the_mean(shape):
    x = torch.ones(shape)
    dropout = Dropout.draw(x, 0.1, torch.Generator().manual_seed(0))
    assert dropout is not None
    y = dropout(x)
    kept = y > 0
    assert abs(kept.float().mean() - 0.9) < 4 * math.sqrt(0.09 / x.numel())
    torch.testing.assert_close(y[kept], torch.full_like(y[kept], 1 / 0.9), rtol=1e-4, atol=0)
    lanes = kept.flatten()[: x.numel() // 4 * 4].view(-1, 4).float().mean(0)
    assert (lanes - 0.9).abs().max() < 5 * math.sqrt(0.36 / x.numel())


def test_dropout_is_a_function_of_the_generator():
    x, state = torch.randn(4, 5, 6), torch.get_rng_state()
    draws = (Dropout.draw(x, 0.3, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    one, two, other = (draw(x) for draw in draws if draw is not None)
    assert torch.equal(one, two) and not torch.equal(one, other) and torch.equal(torch.get_rng_state(), state)
    assert Dropout.draw(x, 0.0, torch.Generator()) is None
