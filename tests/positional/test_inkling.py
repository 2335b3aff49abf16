"""Inkling against transformers' own layer, in kernels and rows, with gradients."""

import copy
import math

import pytest
import torch

import dape
from dape import Grid
from dape.conformance.make import featured

HEADS, WIDTH, MODEL = 4, 16, 64


def make(name="inkling", **options):
    torch.manual_seed(0)
    pe = dape.build(name, num_heads=HEADS, head_dim=WIDTH, train_length=8, **options)
    with torch.no_grad():
        for p in pe.parameters():
            p.normal_(std=0.3)
    return pe


def test_as_in_transformers():
    modeling = pytest.importorskip("transformers.models.inkling.modeling_inkling")
    pe, x, at = make(rank=5, extent=7), torch.randn(20, MODEL), torch.arange(20)
    theirs = modeling.InklingRelativeLogits(5, 7)
    theirs.proj.data = pe.profiles.data
    states = pe.features(x.unsqueeze(0)).view(1, 20, HEADS, 5)
    tau = 1 + 0.1 * torch.log(((at + 1) / 8).clamp(min=1.0)).view(1, 1, -1, 1)
    expected = theirs(states, at, at) * tau
    bias = pe.bias_on(featured(Grid.of_length(20, 20, causal=True), pe, x))
    torch.testing.assert_close(bias, expected[0], rtol=1e-5, atol=1e-6)
    q = torch.ones(1, HEADS, 20, WIDTH)
    torch.testing.assert_close(pe.rotate(q, q, Grid.of_length(20, 20, causal=True))[0], q * tau)


def test_by_hand():
    pe = make(rank=1, extent=3, log_floor=2.0, log_rate=0.5)
    with torch.no_grad():
        pe.profiles.copy_(torch.tensor([[1.0, 10.0, 100.0]]))
        pe.w_r.weight.zero_()
        pe.w_r.weight[:, 0] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    x = torch.zeros(5, MODEL)
    x[4, 0] = 1.0
    bias = pe.bias_on(featured(Grid.at(torch.tensor([4]), torch.arange(5), causal=True), pe, x))
    expected = torch.tensor([0.0, 0.0, 100.0, 10.0, 1.0]) * (1 + 0.5 * math.log(2.5))
    torch.testing.assert_close(bias[1, 0], 2 * expected)


@pytest.mark.parametrize("name", ["inkling", "dape-inkling"])
@pytest.mark.parametrize("impl", ["blocked", "auto"])
def test_outputs_and_gradients(name, impl):
    pe, found = make(name, extent=11), []
    given = [torch.randn(2, HEADS, 70, WIDTH) for _ in range(3)] + [torch.randn(2, 70, MODEL)]
    for how, dtype in ((impl, torch.float32), ("reference", torch.float64)):
        q, k, v, x = (t.to(dtype).requires_grad_() for t in given)
        own = copy.deepcopy(pe).to(dtype)
        out = dape.attention(q, k, v, own, features=own.features(x), impl=how)
        towards = torch.linspace(-1, 1, out.numel(), dtype=dtype).view_as(out)
        found.append([t.double() for t in (out, *torch.autograd.grad(out, [q, k, v, x, *own.parameters()], towards))])
    for mine, exact in zip(*found, strict=True):
        torch.testing.assert_close(mine, exact, rtol=1e-3, atol=2e-4 * max(1.0, float(exact.detach().abs().max())))


def test_it_has_a_kernel_if_heads_are_wide_enough():
    q, x = torch.randn(1, HEADS, 300, WIDTH), torch.randn(1, 300, MODEL)
    pe = make()
    choice = dape.attention(q, q, q, pe, features=pe.features(x), explain=True)[1]
    assert choice.kernel in ("relative products", "row blocks")  # the latter without a compiler
    narrow = make(rank=17)
    assert narrow.row_form() is None
    dape.attention(q, q, q, narrow, features=narrow.features(x))
