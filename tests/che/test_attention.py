"""Parts of a block: attention in fewer products, of tokens of few kinds and for few queries."""

import pytest
import torch

from dape.che.attention import EncoderAttention, Repeated
from dape.positional.build import build
from dape.positional.randomized import Randomized


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("last", [None, 3, 7, 9])
@pytest.mark.parametrize(("method", "count"), [("alibi", 5), ("rope", 6), ("dape-kerple", 7)])
def test_repeated_tokens_are_those_tokens(method, count, last, bias):
    """Fewer kinds than a head is wide, as many, and more."""
    torch.manual_seed(0)
    attention = EncoderAttention(24, 4, bias=bias, causal=False).double()
    pe = build(method, num_heads=4, head_dim=6, train_length=7).double()
    kinds = torch.randn(count, 24, dtype=torch.float64, requires_grad=True)
    which = torch.randint(count, (2, 7))
    inputs = [kinds, *attention.parameters(), *pe.parameters()]
    actual = attention.of_kinds(Repeated(kinds, which), pe, last)
    expected = attention(kinds[which], pe, last=last)
    torch.testing.assert_close(actual, expected)
    weights = torch.randn_like(actual)
    found, wanted = (torch.autograd.grad((y * weights).sum(), inputs) for y in (actual, expected))
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("method", ["nope", "alibi", "dape-kerple", "randomized-fire", "randomized-dape-alibi"])
@pytest.mark.parametrize("last", [1, 3, 7])
def test_few_queries_without_keys_and_values(last, method, causal):
    torch.manual_seed(0)
    attention = EncoderAttention(24, 4, bias=False, causal=causal).double()
    pe = build(method, num_heads=4, head_dim=6, train_length=7).double()
    pe = pe.draw(9) if isinstance(pe, Randomized) else pe
    x = torch.randn(2, 7, 24, dtype=torch.float64, requires_grad=True)
    inputs = [x, *attention.parameters(), *pe.parameters()]
    actual, expected = attention.of_few(x, pe, last), attention(x, pe, last=last)
    torch.testing.assert_close(actual, expected)
    weights = torch.randn_like(actual)
    found, wanted = (torch.autograd.grad((y * weights).sum(), inputs) for y in (actual, expected))
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("method", ["rope", "transformer-xl", "randomized-rope", "dape-rope", "cope"])
def test_encodings_that_need_keys(method):
    assert not build(method, num_heads=4, head_dim=6, train_length=7).reads_scores_alone
