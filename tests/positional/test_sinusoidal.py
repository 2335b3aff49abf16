import math

import pytest
import torch

from dape.positional.sinusoidal import sinusoid


def test_halves_layout_by_hand():
    row = sinusoid(torch.tensor([3]), 4, dtype=torch.float64)[0].tolist()
    assert row == pytest.approx([math.sin(3), math.sin(0.03), math.cos(3), math.cos(0.03)])
    row = sinusoid(torch.tensor([-3]), 4, base=100.0, dtype=torch.float64)[0].tolist()
    assert row == pytest.approx([-math.sin(3), -math.sin(0.3), math.cos(3), math.cos(0.3)])


def test_embedding_depends_on_positions_not_on_place(make):
    """Spec section 6, item 3: a cached step at position p gets the row of p."""
    pe, x = make("sinusoidal", model_dim=6), torch.randn(2, 5, 6)
    whole = pe.embed(x, torch.arange(5))
    torch.testing.assert_close(pe.embed(x[:, 3:4], torch.tensor([3])), whole[:, 3:4])
    torch.testing.assert_close(pe.embed(x, torch.arange(5).expand(2, 5)), whole)


def test_large_positions_do_not_round_in_half_precision(make):
    x = torch.zeros(1, 8, dtype=torch.bfloat16)
    out = make("sinusoidal", model_dim=8).bfloat16().embed(x, torch.tensor([8191]))
    angles = [8191 * 10.0**-m for m in range(4)]  # 10000^(-2m/8)
    expected = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
    assert out.dtype == torch.bfloat16
    assert out[0].tolist() == pytest.approx(expected, abs=0.005)


def test_width_defaults_to_all_heads_and_must_be_even(make):
    assert make("sinusoidal").embed(torch.zeros(3, 32), torch.arange(3)).shape == (3, 32)
    with pytest.raises(ValueError, match="even model_dim, got 7"):
        make("sinusoidal", model_dim=7)
