"""Rope and position interpolation, against rotations of complex numbers and the Llama of transformers."""

import math

import pytest
import torch

import dape
from dape import Grid


def turned(x, angle, *, interleaved=False):
    """Each channel pair of x as a complex number, turned by angle [t, c] in radians."""
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    z = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle)
    return torch.stack([z.real, z.imag], -1).flatten(-2) if interleaved else torch.cat([z.real, z.imag], -1)


def frequencies(width, base=10000.0):
    return torch.tensor([base ** (-2 * m / width) for m in range(width // 2)], dtype=torch.float64)


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("base", [10000.0, 500.0])
def test_rope_turns_pairs(make, interleaved, base):
    q, k = normal(2, 4, 3, 8), normal(2, 2, 7, 8)  # fewer key heads, and a cache
    pe = make("rope", interleaved=interleaved, base=base)
    new_q, new_k = pe.rotate(q, k, Grid.of_length(3, 7, causal=True))
    positions, w = torch.arange(7, dtype=torch.float64)[:, None], frequencies(8, base)
    torch.testing.assert_close(new_q, turned(q, positions[4:] * w, interleaved=interleaved))
    torch.testing.assert_close(new_k, turned(k, positions * w, interleaved=interleaved))


def test_rope_by_hand(make):
    x = torch.tensor([[[1.0, 0.0]]]).double()
    q, _ = make("rope", head_dim=2).rotate(
        x, x, Grid(q_index=torch.tensor([2]), k_index=torch.tensor([0]), causal=True)
    )
    assert q.flatten().tolist() == pytest.approx([math.cos(2), math.sin(2)])


def test_scores_depend_on_lags_alone(make):
    q, k, pe = normal(1, 4, 6, 8), normal(1, 4, 6, 8), make("rope")

    def scores(shift):
        n = torch.arange(6) + shift
        a, b = pe.rotate(q, k, Grid(q_index=n, k_index=n, causal=True))
        return a @ b.mT

    torch.testing.assert_close(scores(0), scores(1000))
    assert not torch.allclose(scores(0), q @ k.mT)


def test_angles_do_not_round_in_half_precision(make):
    x = torch.ones(1, 1, 1, 8, dtype=torch.bfloat16)
    at = Grid(q_index=torch.tensor([8191]), k_index=torch.tensor([8191]), causal=True)
    q, _ = make("rope").bfloat16().rotate(x, x, at)
    assert q.dtype == torch.bfloat16
    torch.testing.assert_close(q.double(), turned(x.double(), 8191 * frequencies(8)[None]), rtol=0, atol=0.01)


def test_odd_width_is_refused(make):
    with pytest.raises(ValueError, match="head_dim must be even, got 7"):
        make("rope", head_dim=7)


# Position interpolation ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [5, 16])
def test_pi_is_rope_within_the_training_length(make, length):
    x, grid = normal(1, 4, length, 8), Grid.of_length(length, length, causal=True)
    torch.testing.assert_close(make("pi").rotate(x, x, grid), make("rope").rotate(x, x, grid))


@pytest.mark.parametrize("length, options, s", [(64, {}, 4.0), (23, {}, 23 / 16), (5, {"scale": 2.0}, 2.0)])
def test_pi_divides_positions_by_the_stretch(make, length, options, s):
    x = normal(1, 4, length, 8)
    q, k = make("pi", **options).rotate(x, 2 * x, Grid.of_length(length, length, causal=True))
    expected = turned(x, torch.arange(length, dtype=torch.float64)[:, None] / s * frequencies(8))
    torch.testing.assert_close(q, expected)
    torch.testing.assert_close(k, 2 * expected)


@pytest.mark.parametrize("name", ["pi", "yarn"])
@pytest.mark.parametrize("options", [{"base": 500.0}, {"interleaved": True}])
def test_options_of_rope_reach_what_stretches_it(make, name, options):
    """At a stretch of 1 both are rope, whatever its options."""
    x, grid = normal(1, 4, 12, 8), Grid.of_length(12, 12, causal=True)
    stretched, plain = make(name, scale=1.0, **options).rotate(x, x, grid), make("rope", **options).rotate(x, x, grid)
    torch.testing.assert_close(stretched, plain)
    assert not torch.allclose(stretched[0], make("rope").rotate(x, x, grid)[0])


def test_pi_stretches_each_packed_document_by_its_own_length(make):
    """A document of 24 tokens (s = 1.5) beside one of 8 (s = 1)."""
    n, x = torch.cat([torch.arange(24), torch.arange(8)]), normal(1, 4, 32, 8)
    document = (torch.arange(32) >= 24).long()
    grid = Grid(q_index=n, k_index=n, causal=True, q_document=document, k_document=document)
    s = torch.tensor([1.5] * 24 + [1.0] * 8, dtype=torch.float64)
    q, k = make("pi").rotate(x, x, grid)
    expected = turned(x, (n / s)[:, None] * frequencies(8))
    torch.testing.assert_close(q, expected)
    torch.testing.assert_close(k, expected)


def test_pi_fixed_scale_does_not_depend_on_what_is_in_the_cache(make):
    pe, x = make("pi", scale=4.0), normal(1, 4, 40, 8)
    _, early = pe.rotate(x[:, :, :20], x[:, :, :20], Grid.of_length(20, 20, causal=True))
    _, late = pe.rotate(x, x, Grid.of_length(40, 40, causal=True))
    torch.testing.assert_close(early, late[:, :, :20])


@pytest.mark.parametrize("name", ["pi", "yarn"])
@pytest.mark.parametrize("scale", [0.5, 0.0, -1.0, math.nan])
def test_a_scale_below_one_is_refused(make, name, scale):
    with pytest.raises(ValueError, match=f"1 or more, got {scale}|scale must be a positive number, got {scale}"):
        make(name, scale=scale)


def test_rope_equals_llama(make):
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = LlamaConfig(
        hidden_size=64, num_attention_heads=2, rope_parameters={"rope_type": "default", "rope_theta": 5e3}
    )
    q, k = torch.randn(2, 2, 9, 32), torch.randn(2, 2, 9, 32)
    positions = torch.randint(0, 2000, (2, 9))
    cos, sin = LlamaRotaryEmbedding(config)(q, positions)
    theirs = apply_rotary_pos_emb(q, k, cos, sin)
    ours = make("rope", head_dim=32, base=5e3).rotate(q, k, Grid(q_index=positions, k_index=positions, causal=True))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-3)  # float32 angles of up to 2000 radians


@pytest.mark.parametrize(
    ("name", "options", "once"),
    [
        ("rope", {}, True),
        ("dape-rope", {}, True),
        ("pi", {}, False),
        ("pi", {"scale": 4.0}, True),
        ("yarn", {}, False),
        ("dape-yarn", {}, False),
        ("yarn", {"scale": 4.0}, True),
        ("randomized-rope", {}, False),
        ("kerple", {}, True),
    ],
)
def test_whether_rotated_keys_may_be_cached(name, options, once):
    """Then the rotation of a part is a part of the rotation, and attention takes q and k as they are."""
    pe = dape.build(name, num_heads=2, head_dim=8, train_length=16, **options)
    assert pe.rotates_once is once
    if not once:
        return
    q, k, v = torch.randn(3, 1, 2, 50, 8, generator=torch.Generator().manual_seed(0))
    whole, part = torch.arange(50), torch.arange(40, 50)
    turned_q, turned_k = pe.rotate(q, k, Grid.at(whole, whole, causal=True))
    _, later = pe.rotate(q[:, :, 40:], k[:, :, 40:], Grid.at(part, part, causal=True))
    torch.testing.assert_close(turned_k[:, :, 40:], later)
    torch.testing.assert_close(dape.attention(turned_q, turned_k, v, pe, rotated=True), dape.attention(q, k, v, pe))
