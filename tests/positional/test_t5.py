import math

import pytest
import torch

CAUSAL = [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
PER_SIDE = [8, 12, 16, 23, 32, 46, 64, 91]


def first_lags(buckets):
    """Lag at which each bucket begins."""
    return [lag for lag in range(1, len(buckets)) if buckets[lag] != buckets[lag - 1]]


def test_item_2_causal_boundaries(make):
    """Spec section 6, item 2."""
    buckets = make("t5").bucket(torch.arange(9000), causal=True).tolist()
    assert first_lags(buckets) == [*range(1, 16), *CAUSAL]
    assert buckets[:17] == list(range(17)) and buckets[113] == buckets[-1] == 31
    assert make("t5").bucket(torch.tensor([-5]), causal=True).item() == 0, "hidden keys need a valid bucket too"


def test_item_2_bidirectional_boundaries(make):
    past = make("t5").bucket(torch.arange(9000), causal=False).tolist()
    future = make("t5").bucket(-torch.arange(9000), causal=False).tolist()
    assert first_lags(past) == [*range(1, 8), *PER_SIDE]
    assert past[-1] == 15
    assert future[0] == 0, "the diagonal belongs to the past's buckets"
    assert future[1:] == [b + 16 for b in past[1:]]


@pytest.mark.parametrize("options, scale", [({}, math.sqrt(8)), ({"bias_scale": "one"}, 1.0)])
@pytest.mark.parametrize("causal", [True, False])
def test_bias_is_a_scaled_row_of_the_table(make, options, scale, causal):
    pe = make("t5", **options)
    bias = pe.bias(torch.tensor([200]), torch.tensor([200, 190, 100, 0]), causal=causal)
    # lags 0, 10, 100, 200
    rows = [0, 10, 30, 31] if causal else [0, 8, 15, 15]
    torch.testing.assert_close(bias[:, 0], scale * pe.table[rows].T)


def test_gradient_counts_the_cells_of_each_bucket(make):
    pe = make("t5", bias_scale="one")
    n = torch.arange(4)
    pe.bias(n, n, causal=False).sum().backward()
    expected = torch.zeros(32)
    expected[[0, 1, 2, 3, 17, 18, 19]] = torch.tensor([4.0, 3, 2, 1, 3, 2, 1])
    torch.testing.assert_close(pe.table.grad, expected[:, None].expand(32, 4))


def test_initial_spread_is_xavier_normal(make):
    table = make("t5", num_heads=2000).table
    assert table.std().item() == pytest.approx(math.sqrt(2 / 2032), rel=0.02)


def test_impossible_sizes_are_refused(make):
    for buckets in (2, 30):
        with pytest.raises(ValueError, match=f"multiple of 4.*got {buckets}"):
            make("t5", num_buckets=buckets)
    with pytest.raises(ValueError, match="must exceed num_buckets / 2 = 16, got 16"):
        make("t5", max_distance=16)


def test_a_short_max_distance_skips_buckets(make):
    """16 + floor(16 ln(n / 16) / ln(20 / 16)): only four lags are left for the sixteen far buckets."""
    buckets = make("t5", max_distance=20).bucket(torch.arange(15, 22), causal=True)
    assert buckets.tolist() == [15, 16, 20, 24, 28, 31, 31]


@pytest.mark.parametrize("buckets, distance", [(32, 128), (64, 256), (16, 100), (32, 20), (4, 8), (128, 1000)])
@pytest.mark.parametrize("causal", [True, False])
def test_buckets_equal_transformers(make, buckets, distance, causal):
    pytest.importorskip("transformers")
    from transformers.models.t5.modeling_t5 import T5Attention

    lag = torch.arange(-3000, 3001)
    theirs = T5Attention._relative_position_bucket(-lag, not causal, buckets, distance)
    ours = make("t5", num_buckets=buckets, max_distance=distance).bucket(lag, causal=causal)
    assert torch.equal(ours, theirs), lag[ours != theirs].tolist()
