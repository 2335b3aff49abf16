"""torch.compile: one graph for all lengths, forward and backward, with the same numbers as without it."""

import pytest
import torch
from tests.compiling import COMPILES
from torch import Tensor

import dape

HEADS, WIDTH = 4, 8
LENGTHS = (5, 9, 17, 33)

pytestmark = COMPILES


def training_step(attention, pe, length: int) -> list[Tensor]:
    """Output and gradients, with q, k, v as a model makes them: heads and tokens swapped."""
    generator = torch.Generator().manual_seed(length)
    inputs = [torch.randn(2, length, HEADS, WIDTH, generator=generator).requires_grad_() for _ in range(3)]
    out = attention(*(x.transpose(1, 2) for x in inputs))
    towards = torch.linspace(-1, 1, out.numel()).view(out.shape)
    return [out.detach(), *torch.autograd.grad(out, [*inputs, *pe.parameters()], towards)]


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("alibi", "aot_eager"),
        ("kerple", "inductor"),
        ("dape-kerple", "inductor"),
        ("fire", "aot_eager"),
        ("dape-fire", "inductor"),
    ],
)
def test_blocked_forward_and_backward(name, backend):
    """Inductor, which takes longest, for those with most to generate code of: parameters, and f beside them."""
    torch.manual_seed(0)
    pe = dape.build(name, num_heads=HEADS, head_dim=WIDTH, train_length=16)

    def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dape.attention(q, k, v, pe, impl="blocked")

    compiled = torch.compile(eager, backend=backend, dynamic=True, fullgraph=True)
    for length in LENGTHS:
        with torch._dynamo.config.patch(error_on_recompile=length != LENGTHS[0]):
            actual = training_step(compiled, pe, length)
        torch.testing.assert_close(actual, training_step(eager, pe, length), rtol=1e-4, atol=1e-5)


def test_positions_and_padding():
    torch.manual_seed(0)
    pe = dape.build("dape-kerple", num_heads=HEADS, head_dim=WIDTH, train_length=16)

    def eager(x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        return dape.attention(x, x, x, pe, q_pos=positions, k_pos=positions, key_padding_mask=mask)

    compiled = torch.compile(eager, backend="aot_eager", dynamic=True)
    for length in LENGTHS:
        x, positions = torch.randn(2, HEADS, length, WIDTH), torch.arange(length) + 3
        mask = torch.zeros(2, length, dtype=torch.bool)
        mask[0, :2] = True
        torch.testing.assert_close(compiled(x, positions, mask), eager(x, positions, mask), rtol=1e-4, atol=1e-5)
