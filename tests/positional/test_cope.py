import math

import pytest
import torch

from dape import Grid


def filled(pe):
    with torch.no_grad():
        pe.table.copy_(torch.randn_like(pe.table))
    return pe


def test_item_2_zero_scores_count_half_a_step_per_key(make):
    """Spec section 6, item 2: p = (i - j + 1) / 2, before the clamp."""
    pe = make("cope", npos=5)
    count = pe.count(torch.zeros(1, 4, 12, 12), Grid.of_length(12, 12, causal=True))
    for i in range(12):
        for j in range(i + 1):
            assert count[0, 0, i, j].item() == pytest.approx(min(0.5 * (i - j + 1), 4))


def test_every_cell(make):
    pe = filled(make("cope", npos=4)).double()
    scores, q = torch.randn(1, 4, 9, 9).double(), torch.randn(1, 4, 9, 8).double()
    logits = pe.logits(scores, q, q, Grid.of_length(9, 9, causal=True))
    for h in range(4):
        for i in range(9):
            z = (q[0, h, i] @ pe.table).tolist()
            for j in range(i + 1):
                p = min(sum(1 / (1 + math.exp(-scores[0, h, i, t])) for t in range(j, i + 1)), 3)
                w = p - math.floor(p)
                expected = scores[0, h, i, j].item() + w * z[math.ceil(p)] + (1 - w) * z[math.floor(p)]
                assert logits[0, h, i, j].item() == pytest.approx(expected, abs=1e-9)


def test_padding_is_not_counted(make):
    n = torch.arange(4)
    padding = torch.tensor([[False, True, False, False]])
    grid = Grid(q_index=n, k_index=n, causal=True, key_padding_mask=padding)
    count = make("cope").count(torch.zeros(1, 4, 4, 4), grid)
    assert count[0, 0, 3].tolist() == [1.5, 1.0, 1.0, 0.5]


def test_starts_as_nope_and_learns(make):
    pe, grid = make("cope"), Grid.of_length(6, 6, causal=True)
    assert pe.table.shape == (8, 64) and not pe.table.any()
    scores, q = torch.randn(2, 4, 6, 6, requires_grad=True), torch.randn(2, 4, 6, 8)
    torch.testing.assert_close(pe.logits(scores, q, q, grid), scores)

    filled(pe).logits(scores, q, q, grid).tril().square().sum().backward()
    assert pe.table.grad.abs().sum() > 0
    through_the_count = scores.grad - 2 * pe.logits(scores, q, q, grid).tril()
    assert through_the_count.abs().max() > 0.1, "scores also move the count"


def test_causal_only(make):
    assert not make("cope").supports_bidirectional
    with pytest.raises(ValueError, match="at least two positions, got npos=1"):
        make("cope", npos=1)
