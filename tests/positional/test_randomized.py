"""Spec section 6, item 9, for the encodings that read through a draw."""

import pytest
import torch

from dape import Grid, Randomized


def seeded(n: int) -> torch.Generator:
    return torch.Generator().manual_seed(n)


def square(length, *, causal=True):
    return Grid.of_length(length, length, causal=causal)


def logits(pe, length=6, *, causal=True):
    q = torch.zeros(3, 4, length, 8)
    return pe.logits(torch.zeros(3, 4, length, length), q, q, square(length, causal=causal)).detach()


@pytest.mark.parametrize("causal", [True, False])
def test_lags_are_read_through_the_draw(make, causal):
    pe = make("randomized-alibi", num_heads=4, both_sides=True).draw(6, seeded(1))
    past, future = pe.fixed_draw.past.tolist(), pe.fixed_draw.future.tolist()
    bias = logits(pe, causal=causal)[0, 0]  # slope 1/4
    for i in range(6):
        for j in range(6):
            if j <= i:
                expected = -past[i - j] / 4 + (0 if causal or i == j else 0.125)
                assert bias[i, j].item() == expected
            elif not causal:
                assert bias[i, j].item() == -future[j - i] / 4
    assert past != list(range(6)) and future != past


def test_positions_are_read_through_the_draw(make):
    pe = make("randomized-rope").draw(6, seeded(1))
    x, positions = torch.randn(2, 4, 6, 8), pe.fixed_draw.positions
    plain = make("rope").rotate(x, x, Grid(q_index=positions, k_index=positions, causal=True))
    torch.testing.assert_close(pe.rotate(x, x, square(6)), plain)

    pe = make("randomized-sinusoidal").draw(6, seeded(1))
    x = torch.randn(2, 6, 32)
    torch.testing.assert_close(pe.embed(x, torch.arange(6)), make("sinusoidal").embed(x, pe.fixed_draw.positions))


def test_item_9_one_draw_per_call_shared_by_the_batch_and_new_in_eval_mode(make):
    pe = make("randomized-alibi").eval()
    first, second = logits(pe), logits(pe)
    assert torch.equal(first[0], first[1]) and torch.equal(first[0], first[2])
    assert not torch.equal(first, second), "positions are drawn in evaluation too"
    assert (first.diagonal(dim1=-2, dim2=-1) == 0).all(), "lag 0 stays 0"
    assert (first[0, 0].tril(-1).unique() * -4).max() <= 4 * 16 - 1, "within the pool"


def test_item_9_reproducible(make):
    pe = make("randomized-alibi")
    torch.manual_seed(5)
    first = logits(pe)
    torch.manual_seed(5)
    assert torch.equal(first, logits(pe))
    drawn = [logits(pe.draw(6, seeded(s))) for s in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_a_fixed_draw_shares_the_parameters_and_stays(make):
    pe = make("randomized-dape-kerple")
    fixed = pe.draw(8, seeded(1))
    assert isinstance(fixed, Randomized) and fixed.base is pe.base
    assert pe.fixed_draw is None
    assert torch.equal(logits(fixed), logits(fixed))
    torch.testing.assert_close(logits(fixed, 8)[..., :6, :6].tril(), logits(fixed, 6).tril())


@pytest.mark.parametrize("name", ["randomized-alibi", "randomized-fire", "randomized-dape-kerple", "randomized-cope"])
def test_item_3_cached_rows_with_a_draw(make, name):
    pe = make(name).draw(6, seeded(1))
    scores, q = torch.randn(1, 4, 6, 6), torch.randn(1, 4, 6, 8)
    whole = pe.logits(scores, q, q, square(6))
    rows = pe.logits(scores[:, :, 4:], q[:, :, 4:], q, Grid.of_length(2, 6, causal=True))
    torch.testing.assert_close(rows, whole[:, :, 4:])


def test_decoding_without_a_draw_is_refused(make):
    q, k = torch.zeros(1, 4, 1, 8), torch.zeros(1, 4, 6, 8)
    step = Grid.of_length(1, 6, causal=True)
    with pytest.raises(ValueError, match="Fix one draw"):
        make("randomized-rope").rotate(q, k, step)
    with pytest.raises(ValueError, match="Fix one draw"):
        make("randomized-alibi").logits(torch.zeros(1, 4, 1, 6), q, k, step)
    n = torch.tensor([0, 2, 4])
    with pytest.raises(ValueError, match="Fix one draw"):
        make("randomized-alibi").settle(Grid(q_index=n, k_index=n, causal=True))


def test_embedding_one_decoding_step_without_a_draw_is_refused(make):
    with pytest.raises(ValueError, match="Fix one draw"):
        make("randomized-sinusoidal").embed(torch.zeros(1, 1, 32), torch.tensor([5]))


def test_default_pool_is_four_training_lengths_and_grows(make):
    pe = make("randomized-rope", train_length=5)
    assert pe.pool_for(3) == pe.pool_for(20) == 20
    assert pe.pool_for(21) == 21
    assert pe.draw(21).fixed_draw.positions.tolist() == list(range(21))
    assert pe.draw(3).fixed_draw.pool == 20


def test_a_given_pool_is_kept(make):
    pe = make("randomized-alibi", pool=9)
    assert pe.draw(9).fixed_draw.past.tolist() == list(range(9))
    with pytest.raises(ValueError, match="10 distinct positions from a pool of 9"):
        logits(pe, 10)
    with pytest.raises(ValueError, match="pool must be a positive whole number, got 0"):
        make("randomized-alibi", pool=0)


def test_a_draw_that_is_too_short_is_refused(make):
    with pytest.raises(ValueError, match=r"covers 4 positions, but position 5 is used.*draw\(6\)"):
        logits(make("randomized-alibi").draw(4))


def test_embedding_beyond_a_draw_is_refused(make):
    with pytest.raises(ValueError, match=r"covers 4 positions, but position 5"):
        make("randomized-sinusoidal").draw(4).embed(torch.zeros(6, 32), torch.arange(6))


def test_a_drawn_encoding_still_draws_both_sides(make):
    again = make("randomized-alibi", both_sides=True).draw(9).draw(9, seeded(1)).fixed_draw
    assert not torch.equal(again.past, again.future)


def test_both_sides_is_off_unless_asked(make):
    draw = make("randomized-alibi").draw(9).fixed_draw
    assert torch.equal(draw.past, draw.future)


def test_empty_input(make):
    assert make("randomized-sinusoidal").embed(torch.zeros(2, 0, 32), torch.arange(0)).shape == (2, 0, 32)


@pytest.mark.parametrize("name", ["randomized-alibi", "randomized-dape-alibi"])
def test_the_bias_is_read_through_the_draw(make, name):
    pe = make(name, pool=50)
    position = torch.arange(6)
    with pytest.raises(ValueError, match="Fix one draw"):
        pe.bias(position, position)
    drawn = pe.draw(6, torch.Generator().manual_seed(0))
    slope = make("alibi").bias(torch.tensor([1]), torch.tensor([0]))[:, 0, 0]
    expected = slope[:, None] * drawn.fixed_draw.past.flip(0)
    torch.testing.assert_close(drawn.bias(position, position)[:, -1], expected)


def test_negative_positions_are_refused(make):
    drawn = make("randomized-sinusoidal").draw(6)
    with pytest.raises(ValueError, match="count from 0"):
        drawn.embed(torch.zeros(1, 2, drawn.dims.model_dim), torch.tensor([-1, 0]))


def test_embedding_draws_no_more_positions_than_there_are(make):
    """Six of a pool of six are all of them, in order."""
    x, positions = torch.zeros(1, 6, 32), torch.arange(6)
    expected = make("sinusoidal").embed(x, positions)
    torch.testing.assert_close(make("randomized-sinusoidal", pool=6).embed(x, positions), expected)
