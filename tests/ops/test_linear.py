"""Products by oneDNN against float64, and the calls that must not take them."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.functional import linear as of_torch
from torch.utils.flop_counter import FlopCounterMode

from dape.ops import linear as module
from dape.ops.linear import linear, product

pytestmark = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")),
    reason="this PyTorch has no oneDNN",
)


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, ...]]]:
    """Shapes that oneDNN was called with; every size is taken, on every processor."""
    seen: list[tuple[int, ...]] = []
    onednn = module._onednn

    def counted(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        seen.append(tuple(x.shape))
        return onednn(x, weight, bias)

    monkeypatch.setattr(module, "_onednn", counted)
    monkeypatch.setattr(module, "serves", lambda: True)
    monkeypatch.setattr(module, "LEAST", 0)
    yield seen


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("shape", [(2, 1), (7, 5), (3, 11, 5), (2, 2, 3, 16)])
@pytest.mark.parametrize("outputs", [1, 4, 33])
@pytest.mark.parametrize("bias", [True, False])
def test_outputs_and_gradients_of_both_orders(
    shape: tuple[int, ...], outputs: int, bias: bool, calls: list[tuple[int, ...]]
) -> None:
    layer = nn.Linear(shape[-1], outputs, bias=bias)
    x = drawn(*shape).requires_grad_()
    found = linear(layer, x)
    assert calls
    exact = [p.detach().double().requires_grad_() for p in (x, *layer.parameters())]
    wanted = of_torch(*exact)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    weigh = drawn(*found.shape)
    grads = torch.autograd.grad((found.sin() * weigh).sum(), [x, *layer.parameters()], create_graph=True)
    wanted_grads = torch.autograd.grad((wanted.sin() * weigh).sum(), exact, create_graph=True)
    for mine, right in zip(grads, wanted_grads, strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=1e-4, atol=1e-4)
    second = torch.autograd.grad(sum((g**2).sum() for g in grads), [x, layer.weight])
    wanted_second = torch.autograd.grad(sum((g**2).sum() for g in wanted_grads), exact[:2])
    for mine, right in zip(second, wanted_second, strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=1e-3, atol=1e-3)


def test_strided_inputs() -> None:
    wide, weight = drawn(6, 4, 10), drawn(9, 10)
    x = wide.transpose(0, 1)[:, :, ::2]
    torch.testing.assert_close(product(x, weight[:, ::2], None), of_torch(x, weight[:, ::2]))


def test_frozen_weights_get_no_gradient() -> None:
    layer, x = nn.Linear(8, 4).requires_grad_(False), drawn(5, 8).requires_grad_()
    linear(layer, x).sum().backward()
    assert layer.weight.grad is None and x.grad is not None
    assert not linear(layer, x.detach()).requires_grad


class Doubled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def test_layers_that_do_more_are_called(calls: list[tuple[int, ...]]) -> None:
    x = drawn(5, 8)
    hooked = nn.Linear(8, 4)
    hooked.register_forward_hook(lambda layer, args, out: torch.add(out, 1))
    torch.testing.assert_close(linear(hooked, x), torch.add(of_torch(x, hooked.weight, hooked.bias), 1))
    doubled = Doubled(8, 4)
    torch.testing.assert_close(linear(doubled, x), 2 * of_torch(x, doubled.weight, doubled.bias))
    assert not calls


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # PyTorch uses it for forward mode
@pytest.mark.parametrize("how", ["autocast", "vmap", "forward mode", "dispatch mode", "float64", "one row", "off"])
def test_left_to_pytorch(how: str, calls: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = nn.Linear(8, 4), drawn(5, 8)
    if how == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            assert linear(layer, x).dtype == torch.bfloat16
    elif how == "vmap":
        found = torch.vmap(lambda row: product(row[None], layer.weight, None)[0])(x)
        torch.testing.assert_close(found, x @ layer.weight.T)
    elif how == "forward mode":
        with forward_ad.dual_level():
            found = product(forward_ad.make_dual(x, x), layer.weight, None)
            torch.testing.assert_close(forward_ad.unpack_dual(found).tangent, x @ layer.weight.T)
    elif how == "dispatch mode":
        with FlopCounterMode(display=False) as flops:
            linear(layer, x)
        assert flops.get_total_flops() == 2 * 5 * 8 * 4
    elif how == "float64":
        assert linear(layer.double(), x.double()).dtype == torch.float64
    elif how == "one row":
        torch.testing.assert_close(linear(layer, x[:1]), of_torch(x[:1], layer.weight, layer.bias))
    else:
        monkeypatch.setenv("DAPE_KERNELS", "off")
        torch.testing.assert_close(linear(layer, x), of_torch(x, layer.weight, layer.bias))
    assert not calls


def test_small_products_are_left_to_pytorch(calls: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST", 5 * 8 * 4)
    linear(nn.Linear(8, 4), drawn(4, 8))
    assert not calls
    linear(nn.Linear(8, 4), drawn(5, 8))
    assert calls


@pytest.mark.parametrize(("model", "flags", "expected"), [
    ("AMD EPYC", "fma avx512f", True),
    ("AMD Ryzen 7 5800X", "fma avx2", False),
    ("Intel(R) Xeon(R)", "fma avx512f", False),
])  # fmt: skip
def test_which_processors(model: str, flags: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(module.native, "processor", lambda: f"model name\t: {model}\nflags\t\t: {flags}")
    assert module.serves.__wrapped__() is (expected and torch.backends.mkl.is_available())
