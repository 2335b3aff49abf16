"""Products by numpy's BLAS against PyTorch's, and when they are chosen."""

import pytest
import torch
from torch import nn

from dape.ops import products


@pytest.fixture
def by_numpy(monkeypatch, one_thread):
    monkeypatch.setattr(products, "_by_numpy", True)
    monkeypatch.setattr(torch, "mm", lambda *_: pytest.fail("not by numpy"))


@pytest.mark.parametrize(("n", "k", "m"), [(5, 7, 3), (1, 1, 1), (64, 33, 130), (0, 3, 4), (4, 0, 3), (3, 4, 0)])
@pytest.mark.parametrize("turned", [False, True])
def test_product(n, k, m, turned, by_numpy):
    torch.manual_seed(0)
    a, b = torch.randn(n, k), torch.randn(k, m)
    if turned:
        a, b = a.t().contiguous().t(), b.t().contiguous().t()
    exact = a.double() @ b.double()
    torch.testing.assert_close(products.mm(a, b).double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(2, 5, 6), (4, 6), (0, 3, 6)])
def test_layer_and_gradients(shape, bias, by_numpy):
    torch.manual_seed(0)
    layer = products.Linear(6, 9, bias=bias)
    wide = torch.randn(*shape[:-1], 12, requires_grad=True)
    x = wide[..., ::2]  # rows that are not consecutive
    weights = torch.randn(*shape[:-1], 9)
    inputs = [wide, *layer.parameters()]
    actual, expected = layer(x), nn.functional.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(actual, expected)
    found, wanted = (torch.autograd.grad((y * weights).sum(), inputs) for y in (actual, expected))
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("case", ["off", "threads", "float64"])
def test_pytorch_where_numpy_does_not_suit(case, monkeypatch, one_thread):
    monkeypatch.setattr(products, "_by_numpy", case != "off")
    monkeypatch.setattr(products.np, "matmul", lambda *_, **__: pytest.fail("by numpy"))
    torch.set_num_threads(2 if case == "threads" else 1)
    a = torch.randn(3, 4, dtype=torch.float64 if case == "float64" else torch.float32)
    torch.testing.assert_close(products.mm(a, a.t()), a @ a.t())
    torch.testing.assert_close(products.linear(a, a, None), a @ a.t())


def test_choice(monkeypatch):
    class Found(list):
        limits = None

        def limit(self, limits):
            Found.limits = limits

    monkeypatch.setattr(products, "_by_numpy", False)
    monkeypatch.setattr(products, "processor", lambda: "model name : Intel(R) Xeon(R)")
    assert "not one of AMD's" in (products.choose_blas() or "") and not products._by_numpy
    monkeypatch.setattr(products, "processor", lambda: "model name : AMD EPYC 7763")
    monkeypatch.setattr(products, "_openblas", lambda: Found())
    assert "without OpenBLAS" in (products.choose_blas() or "") and not products._by_numpy
    monkeypatch.setattr(products, "_openblas", lambda: Found(["one"]))
    assert products.choose_blas() is None and products._by_numpy and Found.limits == 1
