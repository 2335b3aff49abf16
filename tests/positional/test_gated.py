"""The bias that fades in, which adapters put on models that were trained without it."""

import pytest
import torch

import dape
from dape.positional.alibi import Alibi
from dape.positional.fire import Fire
from dape.positional.gated import Gated

DIMS = dape.AttentionDims(num_heads=2, head_dim=8, train_length=16, model_dim=16)


def gated(base=Alibi, gates=(3.0, -2.0)) -> Gated:
    torch.manual_seed(0)
    pe = Gated(DIMS, base(DIMS))
    with torch.no_grad():
        pe.gate.copy_(torch.tensor(gates))
    return pe


def test_nothing_changes_at_first():
    pe = Gated(DIMS, Alibi(DIMS))
    assert pe.gate.tolist() == [0, 0]
    assert not pe.bias(torch.arange(5), torch.arange(5)).any()


def test_each_head_has_its_own_factor():
    """Alibi's slopes of two heads are 1/16 and 1/256; the lags are 3 and 1."""
    bias = gated().bias(torch.tensor([3]), torch.tensor([0, 2]))
    assert bias.tolist() == [[[-9 / 16, -3 / 16]], [[6 / 256, 2 / 256]]]


def test_a_table_over_lags_has_the_same_numbers():
    source = gated().source()
    assert source.at is not None
    at = source.at(torch.tensor([3, 1]), causal=True)
    assert at.tolist() == [[-9 / 16, -3 / 16], [6 / 256, 2 / 256]]
    assert source.at(torch.tensor([[3], [1]]), causal=True).shape == (2, 2, 1)


def test_without_a_table_where_the_base_has_none():
    """FIRE depends on the query's position too."""
    assert gated(Fire).source().at is None


@pytest.mark.parametrize("base", [Alibi, Fire])
@pytest.mark.parametrize("impl", ["reference", "blocked", "auto"])
def test_in_attention(base, impl):
    pe = gated(base)
    q, k, v = torch.randn(3, 1, 2, 5, 8)
    scores = q @ k.mT / 8**0.5 + pe.gate.view(2, 1, 1) * pe.base.bias(torch.arange(5), torch.arange(5))
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
    torch.testing.assert_close(dape.attention(q, k, v, pe, impl=impl), expected)


def test_directions_are_those_of_the_base():
    assert gated(Alibi).supports_bidirectional
    base = Alibi(DIMS)
    base.supports_bidirectional = False
    assert not Gated(DIMS, base).supports_bidirectional
