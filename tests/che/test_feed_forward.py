"""The feed-forward network against autograd on its formula, and against finite differences."""

import pytest
import torch

from dape.che.feed_forward import FeedForward


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (0, 4), (2, 0)])
def test_formula_and_gradients(shape):
    torch.manual_seed(0)
    module = FeedForward(6, 17).double()
    x = torch.randn(*shape, 6, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(*shape, 6, dtype=torch.float64)
    inputs = [x, *module.parameters()]
    w1, b1, w2, b2 = module.parameters()
    expected = torch.einsum("bth,mh->btm", (torch.einsum("btm,hm->bth", x, w1) + b1).clamp(min=0), w2) + b2
    actual = module(x)
    torch.testing.assert_close(actual, expected)
    found, wanted = (torch.autograd.grad((y * weights).sum(), inputs) for y in (actual, expected))
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_finite_differences():
    torch.manual_seed(1)
    module = FeedForward(4, 9).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(module, (x,))


def test_the_input_and_what_was_saved_stay_as_they_were():
    module = FeedForward(4, 9)
    x = torch.randn(2, 3, 4, requires_grad=True)
    before = x.detach().clone()
    y = module(x)
    first, again = (torch.autograd.grad(y.square().sum(), module.up.weight, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(x, before) and torch.equal(first, again)
