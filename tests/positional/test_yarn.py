import math

import pytest
import torch

from dape import Grid
from dape.positional.yarn import yarn_ramp_bounds


@pytest.mark.parametrize("length, low, high", [(128, 0, 11), (512, 3, 16), (1024, 5, 18)])
def test_item_2_ramp_bounds(length, low, high):
    """Spec section 6, item 2."""
    assert yarn_ramp_bounds(64, length, 10000.0, 32.0, 1.0) == (low, high)


def test_ramp_ends_at_the_width_minus_one():
    """d = 8, L = 10^9: dim(32) = 8 ln(10^9 / 64 pi) / (2 ln 10^4) = 6.7 and dim(1) = 8.2, more than d - 1."""
    assert yarn_ramp_bounds(8, 10**9, 10000.0, 32.0, 1.0) == (6, 7)


@pytest.mark.parametrize("s, factor", [(1, 1.0), (2, 1.0693), (4, 1.1386), (8, 1.2079), (16, 1.2773), (64, 1.4159)])
def test_item_2_sharpening_is_applied_once_to_each_of_q_and_k(make, s, factor):
    """A rotation keeps lengths, so the factor is what rotating adds to them; logits gain its square."""
    x = torch.randn(1, 4, 5, 8, dtype=torch.float64)
    for turned in make("yarn", scale=float(s)).rotate(x, x, Grid.of_length(5, 5, causal=True)):
        torch.testing.assert_close(turned.norm(dim=-1), factor * x.norm(dim=-1), rtol=1e-4, atol=0)


def angle_per_step(pe, width):
    """Read off a rotation of (1, 0) pairs by one step."""
    x = torch.cat([torch.ones(1, 4, 1, width // 2), torch.zeros(1, 4, 1, width // 2)], dim=-1).double()
    one = torch.tensor([1])
    q, _ = pe.rotate(x, x, Grid(q_index=one, k_index=one, causal=True))
    cos, sin = q[0, 0, 0].chunk(2)
    return torch.atan2(sin, cos)


def test_fast_pairs_are_kept_slow_ones_interpolated(make):
    angles = angle_per_step(make("yarn", head_dim=64, train_length=512, scale=8.0), 64)
    for m in range(32):
        w, ramp = 10000 ** (-m / 32), min(max((m - 3) / 13, 0), 1)  # lo 3, hi 16
        assert angles[m].item() == pytest.approx(w * (1 - ramp) + w / 8 * ramp, rel=1e-9)


def test_equal_bounds_make_a_step_instead_of_a_division_by_zero(make):
    """At d = 2 both bounds are 0 here: dim(32) < 0 and dim(1) = 0."""
    pe = make("yarn", head_dim=2, train_length=6, scale=4.0)
    assert (pe.low, pe.high) == (0, 0)
    assert angle_per_step(pe, 2).item() == pytest.approx(1.0)


@pytest.mark.parametrize("length", [5, 16])
def test_within_the_training_length_yarn_is_rope(make, length):
    x, grid = torch.randn(2, 4, length, 8), Grid.of_length(length, length, causal=True)
    torch.testing.assert_close(make("yarn").rotate(x, x, grid), make("rope").rotate(x, x, grid))


def test_dynamic_stretch_is_evaluated_over_training_length(make):
    x, grid = torch.randn(2, 4, 48, 8), Grid.of_length(48, 48, causal=True)
    torch.testing.assert_close(make("yarn").rotate(x, x, grid), make("yarn", scale=3.0).rotate(x, x, grid))
    decoding = Grid.of_length(1, 48, causal=True)
    q, _ = make("yarn").rotate(x[:, :, -1:], x, decoding)
    torch.testing.assert_close(q, make("yarn").rotate(x, x, grid)[0][:, :, -1:])


@pytest.mark.parametrize("length, factor, base", [(128, 4.0, 10000.0), (512, 16.0, 10000.0), (1024, 1.0, 5e5)])
def test_yarn_equals_transformers(make, length, factor, base):
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    parameters = {"rope_type": "yarn", "rope_theta": base, "factor": factor, "original_max_position_embeddings": length}
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=math.ceil(length * factor),
        rope_parameters=parameters,
    )
    q, k, n = torch.randn(1, 2, 300, 64), torch.randn(1, 2, 300, 64), torch.arange(300)
    cos, sin = LlamaRotaryEmbedding(config)(q, n[None])
    pe = make("yarn", num_heads=2, head_dim=64, train_length=length, scale=factor, base=base)
    ours = pe.rotate(q, k, Grid(q_index=n, k_index=n, causal=True))
    torch.testing.assert_close(ours, apply_rotary_pos_emb(q, k, cos, sin), rtol=0, atol=5e-4)
