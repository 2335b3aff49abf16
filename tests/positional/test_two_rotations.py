"""ReRoPE and Self-Extend: lags worked out by hand, groups that fit, and what they must equal."""

import math

import pytest
import torch

import dape
from dape.models.cache import Cache

Q, K = torch.randn(2, 1, 2, 12, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def make(name, **options):
    return dape.build(name, num_heads=2, head_dim=8, train_length=4, **options).double()


def lags_of(pe, length):
    """The lag that every cell is turned by, read off one pair of channels: its score is the cosine."""
    one = torch.zeros(1, 2, length, 8, dtype=torch.float64)
    one[..., 0] = 1
    grid = dape.Grid.of_length(length, length, causal=True)
    cosine = pe.logits(torch.zeros(1, 2, length, length, dtype=torch.float64), one, one, grid)[0, 0] * math.sqrt(8)
    return cosine.clamp(-1, 1).acos().tril()  # channel 0 turns by one radian a token: right below pi


def test_lags_by_hand():
    found = lags_of(make("rerope", window=2), 5)
    by_hand = [[0, 0, 0, 0, 0], [1, 0, 0, 0, 0], [2, 1, 0, 0, 0], [2, 2, 1, 0, 0], [2, 2, 2, 1, 0]]
    torch.testing.assert_close(found, torch.tensor(by_hand, dtype=torch.float64), atol=1e-7, rtol=0)
    # Groups of two: 0 0 1 1 2. From lag 2 on i // 2 - j // 2 + 2 - 1.
    found = lags_of(make("self-extend", window=2, group=2), 5)
    by_hand = [[0, 0, 0, 0, 0], [1, 0, 0, 0, 0], [2, 1, 0, 0, 0], [2, 2, 1, 0, 0], [3, 3, 2, 1, 0]]
    torch.testing.assert_close(found, torch.tensor(by_hand, dtype=torch.float64), atol=1e-7, rtol=0)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 6, 7, 12, 31])
def test_groups_are_the_smallest_that_fit(length):
    """window 2, so that one of the lags 0 to 3 that were learned is left for everything behind it."""
    grid = dape.Grid.of_length(length, length, causal=True)
    q_far, k_far = make("self-extend").far_positions(grid)
    group = max(1, length - 3)
    assert q_far.tolist() == [i // group + 2 - 2 // group for i in range(length)]
    assert k_far.tolist() == [j // group for j in range(length)]
    far = (q_far[:, None] - k_far)[grid.lag() >= 2]
    assert far.numel() == 0 or (far.max() <= 3 and far.min() >= 2)


@pytest.mark.parametrize("name", ["rerope", "self-extend"])
def test_within_the_window_or_without_a_need_it_is_rope(name):
    rope, q, k = make("rope"), Q[:, :, :4], K[:, :, :4]
    expected = dape.attention(q, k, k, rope)
    options = {"window": 20} | ({"group": 3} if name == "self-extend" else {})
    torch.testing.assert_close(dape.attention(q, k, k, make(name, **options)), expected)
    if name == "self-extend":
        torch.testing.assert_close(dape.attention(q, k, k, make(name)), expected)


@pytest.mark.parametrize("shift", [1, 7, 1000])
def test_only_lags_count_in_rerope(shift):
    pe, at = make("rerope"), torch.arange(12)
    here = dape.attention(Q, K, K, pe, q_pos=at, k_pos=at)
    torch.testing.assert_close(dape.attention(Q, K, K, pe, q_pos=at + shift, k_pos=at + shift), here)


def test_options_reach_the_rotation_and_wrong_ones_are_refused():
    pe = make("self-extend", base=500.0, interleaved=True, fraction=0.5, group=2)
    assert (pe.rope.base, pe.rope.interleaved, pe.rope.width) == (500.0, True, 4)
    with pytest.raises(ValueError, match="window=3 leaves no lag for groups: it must be at most 2"):
        make("self-extend", window=3)
    with pytest.raises(ValueError, match="group must be a positive whole number, got 0"):
        make("self-extend", group=0)
    with pytest.raises(ValueError, match="defined for causal attention only"):
        dape.attention(Q, K, K, make("rerope"), causal=False)


def test_decoding_in_a_model_goes_on_as_without_a_cache():
    """Keys lie in the cache as they are; a fixed group, as another one would have changed what was decoded before."""
    for options in ({"encoding": "rerope"}, {"encoding": "self-extend", "encoding_options": {"group": 3}}):
        torch.manual_seed(0)
        model = dape.DecoderLM(
            dape.DecoderConfig(layers=2, width=16, heads=2, vocabulary=9, train_length=4, **options)
        ).eval()
        tokens = torch.randint(9, (1, 12))
        cache, whole = Cache(2), model(tokens)
        steps = [model(tokens[:, t : t + 1], cache=cache) for t in range(12)]
        torch.testing.assert_close(torch.cat(steps, dim=1), whole)
