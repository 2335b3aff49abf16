"""Parts of a block: tokens of few kinds."""

import pytest
import torch

from dape.models.layers import Repeated, SelfAttention
from dape.positional.build import build


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("last", [None, 3, 7, 9])
def test_repeated_tokens_are_those_tokens(last, bias):
    torch.manual_seed(0)
    attention = SelfAttention(24, 4, bias=bias, causal=False).double()
    pe = build("alibi", num_heads=4, head_dim=6, train_length=7).double()
    kinds = torch.randn(5, 24, dtype=torch.float64, requires_grad=True)
    which = torch.randint(5, (2, 7))
    inputs = [kinds, *attention.parameters()]
    actual = attention(Repeated(kinds, which), pe, last=last)
    expected = attention(kinds[which], pe, last=last)
    torch.testing.assert_close(actual, expected)
    weights = torch.randn_like(actual)
    found, wanted = (torch.autograd.grad((y * weights).sum(), inputs) for y in (actual, expected))
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)
