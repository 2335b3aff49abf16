"""Talking heads and multi-token attention: worked out by hand, causal, and refused where they make no sense."""

import pytest
import torch

import dape


def scores(rows):
    return torch.tensor(rows, dtype=torch.float64).unsqueeze(0)


def logits(pe, a, causal=True):
    q = torch.zeros(1, a.shape[1], a.shape[2], 4, dtype=torch.float64)
    return pe.logits(a, q, q, dape.Grid.of_length(a.shape[2], a.shape[3], causal=causal))


def test_talking_heads_by_hand():
    pe = dape.build("talking-heads", num_heads=2, head_dim=4, train_length=8).double()
    a = scores([[[1.0, 5.0], [2.0, 3.0]], [[10.0, 50.0], [20.0, 30.0]]])
    assert torch.equal(logits(pe, a), a)  # identity at first
    pe.mix.data = torch.tensor([[0.0, 0.5], [-1.0, 2.0]], dtype=torch.float64)
    # Head 1: A_1 + A_2 / 2. Head 2: A_2 - A_1 + 2 A_2.
    assert logits(pe, a)[0, 0, 1].tolist() == [12.0, 18.0]
    assert logits(pe, a)[0, 1, 1].tolist() == [58.0, 87.0]


def multi_token(**options):
    return dape.build("multi-token", num_heads=2, head_dim=4, train_length=8, **options).double()


def test_multi_token_by_hand():
    pe = multi_token(kernel=3)
    row = [2.0, 3.0, 4.0, 100.0]
    a = scores([[row] * 4, [[10 * x for x in row]] * 4])
    assert torch.equal(logits(pe, a), a)
    pe.theta.data = torch.tensor([[0.5, 0.0, 2.0], [0.0, -1.0, 0.0]], dtype=torch.float64)
    # Row 2 sees three keys, 2 3 4. Head 1: a half of the key before, twice the one after; head 2 vanishes.
    assert logits(pe, a)[0, 0, 2, :3].tolist() == [2 + 2 * 3, 3 + 1 + 2 * 4, 4 + 1.5]  # nothing of the 100
    assert logits(pe, a)[0, 1, 2, :3].tolist() == [0.0, 0.0, 0.0]
    # Without mask the 100 is a neighbour.
    assert logits(pe, a, causal=False)[0, 0, 2, :3].tolist() == [8.0, 12.0, 4 + 1.5 + 200]
    pe.mix.data = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    assert logits(pe, a)[0, 1, 2, :3].tolist() == [8.0, 12.0, 5.5]  # head 2 takes what head 1 has


def test_heads_are_mixed_within_their_group_alone():
    pe = dape.build("multi-token", num_heads=6, head_dim=4, train_length=8, group=3).double()
    pe.mix.data.fill_(1.0)
    a = torch.randn(1, 6, 2, 2, dtype=torch.float64)
    changed = a.clone()
    changed[:, 1] += 1
    moved = (logits(pe, changed) != logits(pe, a)).flatten(2).any(-1)[0]
    assert moved.tolist() == [True] * 3 + [False] * 3


def test_it_is_rope_at_first():
    q, k = torch.randn(2, 1, 2, 9, 4, dtype=torch.float64)
    rope = dape.build("rope", num_heads=2, head_dim=4, train_length=8).double()
    torch.testing.assert_close(dape.attention(q, k, k, multi_token()), dape.attention(q, k, k, rope))


@pytest.mark.parametrize(
    "options, says",
    [({"kernel": 4}, "must be odd"), ({"kernel": 0}, "positive whole"), ({"group": 3}, "2 heads cannot")],
)
def test_what_cannot_be(options, says):
    with pytest.raises(ValueError, match=says):
        multi_token(**options)
