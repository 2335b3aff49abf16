"""DAPE-v2, against convolutions written out with tril."""

import pytest
import torch
from torch import nn

from dape import Grid

LENGTH = 9


def inputs(length=LENGTH):
    return torch.randn(2, 4, length, length).double(), torch.randn(2, 4, length, 8).double()


def alibi_bias(length=LENGTH):
    n = torch.arange(length)
    return torch.stack([-(2.0 ** (-2 * h)) * (n[:, None] - n).abs() for h in range(1, 5)]).double()


def written_out(pe, scores, bias, *, mask_hidden, causal=True):
    """Conv2d 1 x k over neighbouring keys of [A; B], upper triangle zeroed before it (and between, if asked)."""
    stacked = scores if bias is None else torch.cat([scores, bias.expand_as(scores)], dim=1)
    shown = stacked.tril() if causal else stacked
    kernel = pe.first.kernel_size[1]
    first = nn.Conv2d(stacked.shape[1], 32, (1, kernel), padding=(0, kernel // 2)).double()
    second = nn.Conv2d(32, 4, (1, kernel), padding=(0, kernel // 2)).double()
    first.load_state_dict(pe.first.state_dict())
    second.load_state_dict(pe.second.state_dict())
    hidden = nn.functional.leaky_relu(first(shown), 0.01)
    out = scores + second(hidden.tril() if mask_hidden and causal else hidden)
    return out if bias is None else out + bias


@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("mask_hidden", [True, False])
@pytest.mark.parametrize("base", ["alibi", "nope", "rope"])
def test_convolutions_written_out(make, base, mask_hidden, kernel):
    pe = make(f"dape-v2-{base}", kernel=kernel, mask_hidden=mask_hidden).double()
    scores, q = inputs()
    logits = pe.logits(scores, q, q, Grid.of_length(LENGTH, LENGTH, causal=True))
    expected = written_out(pe, scores, alibi_bias() if base == "alibi" else None, mask_hidden=mask_hidden)
    torch.testing.assert_close(logits.tril(), expected.tril())


def test_bidirectional_hides_nothing(make):
    pe, (scores, q) = make("dape-v2-nope").double(), inputs()
    logits = pe.logits(scores, q, q, Grid.of_length(LENGTH, LENGTH, causal=False))
    torch.testing.assert_close(logits, written_out(pe, scores, None, mask_hidden=True, causal=False))


@pytest.mark.parametrize("base", ["kerple", "fire", "nope"])
def test_a_kernel_of_one_is_version_one(make, base):
    new, old = make(f"dape-v2-{base}", kernel=1), make(f"dape-{base}")
    state = {k.replace("f.", "", 1): v for k, v in old.state_dict().items()}
    for name in ("first.weight", "second.weight"):
        state[name] = state[name][..., None, None]
    new.load_state_dict(state)
    (scores, q), grid = inputs(), Grid.of_length(LENGTH, LENGTH, causal=True)
    one, two = (pe.double().logits(scores, q, q, grid).tril() for pe in (old, new))
    torch.testing.assert_close(one, two)


def row_of(pe, scores, q, keys):
    """Row 4, computed when only the first ``keys`` keys exist."""
    row = Grid(q_index=torch.tensor([4]), k_index=torch.arange(keys), causal=True)
    return pe.logits(scores[:, :, 4:5, :keys], q[:, :, 4:5], q[:, :, :keys], row)[..., :5]


def test_item_3_mask_hidden_makes_rows_independent_of_later_keys(make):
    """Spec section 6, item 3. Without it, as in the authors' program, the row changes once key i + 1 exists."""
    scores, q = inputs()
    for mask_hidden in (True, False):
        pe = make("dape-v2-alibi", mask_hidden=mask_hidden).double()
        whole = pe.logits(scores, q, q, Grid.of_length(LENGTH, LENGTH, causal=True))[:, :, 4:5, :5]
        torch.testing.assert_close(row_of(pe, scores, q, LENGTH), whole)
        assert torch.allclose(row_of(pe, scores, q, 5), whole, atol=1e-12) == mask_hidden
        assert pe.reads_hidden_columns == (not mask_hidden)


@pytest.mark.parametrize("mask_hidden", [True, False])
@pytest.mark.parametrize("kernel", [3, 7])
def test_item_8_future_scores_are_invisible(make, mask_hidden, kernel):
    """Spec section 6, item 8."""
    pe, (scores, q) = make("dape-v2-alibi", kernel=kernel, mask_hidden=mask_hidden).double(), inputs()
    grid = Grid.of_length(LENGTH, LENGTH, causal=True)
    disturbed = scores + 100 * torch.ones(LENGTH, LENGTH).double().triu(1)
    torch.testing.assert_close(
        pe.logits(disturbed, q, q, grid).tril(), pe.logits(scores, q, q, grid).tril(), rtol=0, atol=0
    )


def test_neighbouring_keys_matter_within_the_kernels_reach(make):
    """Two convolutions of width 3 see two keys to each side."""
    pe, (scores, q) = make("dape-v2-nope").double(), inputs()
    grid = Grid.of_length(LENGTH, LENGTH, causal=True)
    disturbed = scores.clone()
    disturbed[..., 4] += 1
    change = (pe.logits(disturbed, q, q, grid) - pe.logits(scores, q, q, grid)).abs().amax((0, 1))[LENGTH - 1]
    assert (change > 0).tolist() == [False, False, True, True, True, True, True, False, False]


def test_padding_is_invisible_too(make):
    pe, (scores, q), n = make("dape-v2-alibi").double(), inputs(), torch.arange(LENGTH)
    padding = (n < 2).expand(2, LENGTH)
    grid = Grid(q_index=n - 2, k_index=n - 2, causal=True, key_padding_mask=padding)
    padded = pe.logits(scores, q, q, grid)[..., 2:, 2:]
    alone = pe.logits(scores[..., 2:, 2:], q[..., 2:, :], q[..., 2:, :], Grid.of_length(7, 7, causal=True))
    torch.testing.assert_close(padded.tril(), alone.tril())


def test_sizes(make):
    pe = make("dape-v2-alibi", hidden=6, kernel=5)
    assert pe.first.weight.shape == (6, 8, 1, 5) and pe.second.weight.shape == (4, 6, 1, 5)
    assert make("dape-v2-rope").first.weight.shape == (32, 4, 1, 3)
    with pytest.raises(ValueError, match=r"must be odd.*got 4"):
        make("dape-v2-alibi", kernel=4)
