import math

import pytest
import torch

from dape import Grid


def by_hand(pe, q, k, i, j, position):
    """[ (q + u).k + (q + v).(W s(position)) ] / sqrt(d) at one cell, position by position."""
    h, d = pe.u.shape
    angles = [position * 10000 ** (-2 * m / (h * d)) for m in range(h * d // 2)]
    s = torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)
    encoded = (pe.w_r.weight @ s).view(h, d)
    groups = h // k.shape[1]
    out = []
    for head in range(h):
        key = k[0, head // groups, j]
        out.append((q[0, head, i] + pe.u[head]) @ key + (q[0, head, i] + pe.v[head]) @ encoded[head])
    return torch.stack(out) / math.sqrt(d)


@pytest.mark.parametrize("causal, key_heads", [(True, 4), (False, 4), (True, 2)])
def test_every_cell(make, causal, key_heads):
    pe = make("transformer-xl").double()
    q, k = torch.randn(1, 4, 3, 8).double(), torch.randn(1, key_heads, 5, 8).double()
    scores = q @ k.repeat_interleave(4 // key_heads, 1).mT / math.sqrt(8)
    logits = pe.logits(scores, q, k, Grid.of_length(3, 5, causal=causal))
    for i in range(3):
        for j in range(5):
            lag = 2 + i - j
            if lag >= 0 or not causal:
                expected = by_hand(pe, q, k, i, j, lag if causal else -lag)
                torch.testing.assert_close(logits[0, :, i, j], expected, rtol=1e-10, atol=1e-10)


def test_positions_of_their_own_per_batch_row(make):
    pe = make("transformer-xl").double()
    q, k, zero = torch.randn(2, 4, 2, 8).double(), torch.randn(2, 4, 3, 8).double(), torch.zeros(2, 4, 2, 3).double()
    q_index, k_index = torch.tensor([[5, 9], [3, 4]]), torch.tensor([[0, 2, 5], [1, 2, 3]])
    both = pe.logits(zero, q, k, Grid(q_index=q_index, k_index=k_index, causal=True))
    for b in range(2):
        alone = Grid(q_index=q_index[b], k_index=k_index[b], causal=True)
        torch.testing.assert_close(both[b : b + 1], pe.logits(zero[:1], q[b : b + 1], k[b : b + 1], alone))


def test_initial_spread_and_shapes(make):
    pe = make("transformer-xl", num_heads=16, head_dim=64)
    assert pe.w_r.bias is None and pe.w_r.weight.shape == (1024, 1024)
    for vector in (pe.u, pe.v):
        assert vector.shape == (16, 64)
        assert vector.std().item() == pytest.approx(0.02, rel=0.1)


def test_odd_width_is_refused(make):
    with pytest.raises(ValueError, match="even num_heads \\* head_dim, got 21"):
        make("transformer-xl", num_heads=3, head_dim=7)
