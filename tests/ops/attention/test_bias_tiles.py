"""Attention whose bias is evaluated on each tile: what is not already said by the equivalence with the reference."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.utils.checkpoint import checkpoint

import dape
from dape.positional.alibi import Alibi
from dape.positional.base import Mix, PositionalEncoding, ScoreForm
from dape.positional.dape import HeadMixer

HEADS, WIDTH = 4, 4


def make(name: str, **options):
    torch.manual_seed(0)
    return dape.build(name, num_heads=HEADS, head_dim=WIDTH, train_length=16, **options).double()


def draw(batch: int, length: int) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(batch, HEADS, length, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(3)]


def gradients(pe, inputs: list[Tensor], function=dape.attention, **call) -> dict[str, Tensor | None]:
    wanted = {"q": inputs[0], "k": inputs[1], "v": inputs[2], **dict(pe.named_parameters())}
    for x in wanted.values():
        x.grad = None
    out = function(*inputs, pe, **call)
    out.backward(torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape))
    return {name: x.grad for name, x in wanted.items()}


def test_chosen_for_positions_that_are_no_single_run():
    q, k, v = draw(2, 9)
    scattered = torch.arange(9) * 3
    per_item = torch.stack([torch.arange(9), torch.arange(9) + 4])
    document = torch.arange(9) // 4
    calls = [
        ("fire", {"q_pos": scattered, "k_pos": scattered}),
        ("dape-fire", {"impl": "auto", "q_document": document, "k_document": document}),
        ("dape-fire bias_only", {}),
        ("kerple", {"q_pos": scattered, "k_pos": scattered}),
        ("dape-rope", {"q_pos": per_item, "k_pos": torch.arange(9).expand(2, 9)}),
        ("rope", {"q_document": document, "k_document": document}),
    ]
    for name, call in calls:
        call = {"impl": "blocked", **call}
        name, *variant = name.split()
        pe = make(name, **({"variant": variant[0]} if variant else {}))
        assert dape.attention(q, k, v, pe, explain=True, **call)[1].kernel == "bias tiles", name


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("positions", ["run", "per item", "documents"])
@pytest.mark.parametrize("name", ["fire", "dape-fire", "dape-kerple"])
def test_gradcheck(name, positions, causal, three_workers, tile_bytes):
    tile_bytes(512)
    pe, inputs = make(name), draw(2, 9)
    per_item = torch.stack([torch.arange(9), torch.arange(9) * 2 + 1])
    document = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2])
    call = {
        "run": {},
        "per item": {"q_pos": per_item, "k_pos": per_item},
        "documents": {"q_document": document, "k_document": document},
    }[positions]

    def attention(*_: Tensor) -> Tensor:
        return dape.attention(*inputs, pe, causal=causal, impl="blocked", **call)

    assert gradcheck(attention, (*inputs, *pe.parameters()), fast_mode=True, nondet_tol=0.0)


@pytest.mark.parametrize("name", ["fire", "dape-fire"])
def test_some_parameters_frozen(name, tile_bytes):
    tile_bytes(512)
    pe, inputs = make(name), draw(2, 9)
    for index, parameter in enumerate(pe.parameters()):
        parameter.requires_grad_(index % 2 == 0)
    expected, actual = (gradients(pe, inputs, impl=impl) for impl in ("reference", "blocked"))
    assert {n for n, g in actual.items() if g is None} == {n for n, g in expected.items() if g is None} != set()
    torch.testing.assert_close(
        [g for g in actual.values() if g is not None], [g for g in expected.values() if g is not None]
    )


def test_all_parameters_frozen(tile_bytes):
    tile_bytes(512)
    pe, inputs = make("dape-fire").requires_grad_(False), draw(2, 9)
    expected, actual = (gradients(pe, inputs, impl=impl) for impl in ("reference", "blocked"))
    torch.testing.assert_close(actual["q"], expected["q"])
    assert actual["f.first.weight"] is None


@pytest.mark.parametrize("name", ["fire", "dape-fire", "dape-kerple", "cope"])
def test_inside_activation_checkpointing(name, tile_bytes):
    """The parameters of B are found again although the backward pass belongs to a second forward pass."""
    tile_bytes(512)
    pe, inputs = make(name), draw(2, 9)

    def checkpointed(q, k, v, pe, **call):
        return checkpoint(lambda *x: dape.attention(*x, pe, **call), q, k, v, use_reentrant=False)

    expected = gradients(pe, inputs, impl="reference")
    torch.testing.assert_close(gradients(pe, inputs, checkpointed, impl="blocked"), expected)


class Layer(torch.nn.Module):
    def __init__(self, pe: PositionalEncoding, impl: str) -> None:
        super().__init__()
        self.pe, self.impl = pe, impl

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dape.attention(q, k, v, self.pe, impl=self.impl)


@pytest.mark.parametrize(
    "name",
    ["fire", "dape-fire", "dape-kerple"],
)
def test_parameters_that_are_only_lent(name):
    """functional_call puts other tensors in place of the parameters during the forward pass: right gradients."""
    pe, inputs = make(name), draw(2, 9)
    lent = {f"pe.{n}": (p.detach() * 1.5 + 0.1).requires_grad_() for n, p in pe.named_parameters()}
    results = []
    for impl in ("reference", "blocked"):
        out = torch.func.functional_call(Layer(pe, impl), lent, tuple(inputs))
        results.append(torch.autograd.grad(out.square().sum(), list(lent.values())))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("name", ["fire", "dape-kerple"])
def test_parameters_changed_before_backward_are_noticed(name):
    """Tiles are recomputed in the backward pass: with other parameters the gradients would be wrong."""
    pe, inputs = make(name), draw(1, 9)
    out = dape.attention(*inputs, pe, impl="blocked")
    with torch.no_grad():
        for parameter in pe.parameters():
            parameter.mul_(2)
    with pytest.raises(RuntimeError, match="modified"):
        out.sum().backward()


@pytest.mark.parametrize("name", ["fire", "dape-fire"])
def test_gradient_hooks_of_parameters_run_once(name, tile_bytes):
    """Each parameter is differentiated tile by tile, which is no business of its hooks."""
    tile_bytes(2048)
    pe, inputs, calls = make(name), draw(2, 30), []
    for parameter in pe.parameters():
        parameter.register_hook(lambda grad: calls.append(1))
    dape.attention(*inputs, pe, impl="blocked").sum().backward()
    assert len(calls) == len(list(pe.parameters()))


@pytest.mark.parametrize("impl", ["blocked", "fused"])
@pytest.mark.parametrize("name", ["t5", "fire", "dape-t5", "dape-fire"])
def test_gradients_of_half_precision_parameters_are_rounded_once(name, impl, tile_bytes):
    """The shares of many tiles are added in float32: found by fuzzing, where every share was rounded first."""
    tile_bytes(512)
    half = make(name).bfloat16()
    wide = make(name).bfloat16().float()
    inputs = [x.detach().float().requires_grad_() for x in draw(2, 60)]
    positions = torch.arange(60).flip(0)
    found, wanted = (gradients(pe, inputs, impl=impl, q_pos=positions, k_pos=positions) for pe in (half, wide))
    for parameter, value in wanted.items():
        torch.testing.assert_close(found[parameter].float(), value.bfloat16().float(), rtol=2**-7, atol=1e-6)


class BiasBesideF(Alibi):
    """A + B + f(A): f does not read B. No encoding of the catalogue is so, yet a closed form can say it."""

    def __init__(self, dims: dape.AttentionDims) -> None:
        super().__init__(dims)
        self.f = HeadMixer(dims.num_heads, 8, dims.num_heads)

    def logits(self, scores, q, k, grid):
        return scores + self.bias_on(grid) + self.f(scores)

    def score_form(self):
        weights = self.f.weights()
        assert weights is not None
        w1, b1, w2, b2 = weights
        return ScoreForm(source=self.source(), mix=Mix(wa=w1, wb=None, b1=b1, w2=w2, b2=b2))


@pytest.mark.parametrize(("step", "kernel"), [(1, "lag tables"), (3, "bias tiles")])
def test_f_need_not_read_the_bias(step, kernel, tile_bytes):
    tile_bytes(512)
    torch.manual_seed(0)
    pe, inputs = BiasBesideF(dape.AttentionDims(num_heads=4, head_dim=4, train_length=16, model_dim=16)), draw(2, 9)
    positions = torch.arange(9) * step
    call = {} if step == 1 else {"q_pos": positions, "k_pos": positions}
    assert dape.attention(*inputs, pe.double(), impl="blocked", explain=True, **call)[1].kernel == kernel
    expected, actual = (gradients(pe, inputs, impl=impl, **call) for impl in ("reference", "blocked"))
    torch.testing.assert_close(actual, expected)
