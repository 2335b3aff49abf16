"""Dropout that a generator alone decides."""

import math

import pytest
import torch

from dape.models.dropout import drop


def drawn(x: torch.Tensor, p: float, seed: int = 0) -> torch.Tensor:
    return drop(x, p, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(40, 50, 60), (3, 7, 11)])
def test_keeps_the_mean(shape):
    y = drawn(torch.ones(shape), 0.1)
    kept = y > 0
    assert abs(kept.float().mean() - 0.9) < 4 * math.sqrt(0.09 / y.numel())
    torch.testing.assert_close(y[kept], torch.full_like(y[kept], 1 / 0.9), rtol=1e-4, atol=0)
    lanes = kept.flatten()[: y.numel() // 4 * 4].view(-1, 4).float().mean(0)
    assert (lanes - 0.9).abs().max() < 5 * math.sqrt(0.36 / y.numel())


def test_is_a_function_of_the_generator():
    x, state = torch.randn(4, 5, 6), torch.get_rng_state()
    one, two, other = (drawn(x, 0.3, seed) for seed in (1, 1, 2))
    assert torch.equal(one, two) and not torch.equal(one, other) and torch.equal(torch.get_rng_state(), state)


def test_nothing_is_dropped_without_a_generator_or_a_share():
    x = torch.randn(3, 4)
    assert drop(x, 0.5, None) is x and drawn(x, 0.0) is x


def test_gradients_are_scaled_as_values_are():
    x = torch.randn(5, 6, requires_grad=True)
    (gradient,) = torch.autograd.grad(drawn(x, 0.4).sum(), x)
    torch.testing.assert_close(gradient, drawn(torch.ones_like(x), 0.4))
