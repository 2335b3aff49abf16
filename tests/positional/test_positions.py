"""Spec section 6, item 9: sorted, distinct, within the pool, lag 0 stays 0, reproducible from a seed."""

import pytest
import torch

import dape
from dape import draw_positions
from dape.positional.positions import require_integers


def seeded(n: int) -> torch.Generator:
    return torch.Generator().manual_seed(n)


@pytest.mark.parametrize("length, pool", [(1, 1), (5, 5), (5, 6), (40, 160), (500, 2048)])
@pytest.mark.parametrize("both_sides", [False, True])
def test_item_9_sorted_distinct_and_within_the_pool(length, pool, both_sides):
    draw = draw_positions(length, pool=pool, generator=seeded(1), both_sides=both_sides)
    for table in (draw.positions, draw.past, draw.future):
        assert len(table) == length
        assert (table.diff() > 0).all()
        assert table.min() >= 0 and table.max() < pool
    assert draw.past[0] == draw.future[0] == 0
    assert draw.pool == pool


def test_item_9_lag_zero_stays_zero_and_signs_are_kept():
    draw = draw_positions(6, pool=50, generator=seeded(2), both_sides=True)
    lag = draw.lag(torch.arange(-5, 6))
    assert lag[5] == 0
    assert lag[6:].tolist() == draw.past[1:].tolist()
    assert (-lag[:5]).flip(0).tolist() == draw.future[1:].tolist()
    assert not torch.equal(draw.past, draw.future)


def test_one_side_serves_both_by_default():
    draw = draw_positions(6, pool=50, generator=seeded(2))
    assert torch.equal(draw.past, draw.future)
    assert not torch.equal(draw.past, draw.positions), "positions and lags are separate draws"


def test_item_9_reproducible_from_a_seed():
    first, again, other = (draw_positions(9, pool=90, generator=seeded(s)) for s in (3, 3, 4))
    assert torch.equal(first.positions, again.positions) and torch.equal(first.past, again.past)
    assert not torch.equal(first.positions, other.positions) and not torch.equal(first.past, other.past)


def test_an_explicit_generator_leaves_the_default_one_alone():
    before = torch.get_rng_state()
    draw_positions(9, pool=90, generator=seeded(3))
    assert torch.equal(before, torch.get_rng_state())
    draw_positions(9, pool=90)
    assert not torch.equal(before, torch.get_rng_state())


def test_a_full_pool_is_the_plain_count():
    draw = draw_positions(7, pool=7, both_sides=True)
    for table in (draw.positions, draw.past, draw.future):
        assert table.tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_every_position_is_equally_likely():
    generator, draws = seeded(5), 2000
    seen, lags = torch.zeros(8), torch.zeros(8)
    for _ in range(draws):
        draw = draw_positions(3, pool=8, generator=generator)
        seen[draw.positions] += 1
        lags[draw.past] += 1
    # 3 of 8 positions, and 2 of the 7 distances 1 ... 7; five standard deviations are 0.055.
    torch.testing.assert_close(seen / draws, torch.full((8,), 3 / 8), rtol=0, atol=0.055)
    torch.testing.assert_close(lags / draws, torch.tensor([1.0] + [2 / 7] * 7), rtol=0, atol=0.055)


def test_pool_exceeded_says_the_numbers():
    with pytest.raises(ValueError, match=r"17 distinct positions from a pool of 16.*pool=17"):
        draw_positions(17, pool=16)
    with pytest.raises(ValueError, match="-1 positions"):
        draw_positions(-1, pool=16)


def test_nothing_to_draw():
    draw = draw_positions(0, pool=4)
    assert len(draw.positions) == len(draw.past) == len(draw.future) == 0
    assert isinstance(draw, dape.Draw)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.uint8, torch.uint16, torch.int32, torch.uint64])
def test_a_draw_is_read_at_integers_of_any_width(dtype):
    """An index of 8 bits without sign would be a mask to torch, and one of the length of the draw silently wrong."""
    draw = draw_positions(5, pool=100, generator=seeded(3))
    index = torch.tensor([4, 0, 1, 1, 0])
    assert torch.equal(draw.position(index.to(dtype)), draw.position(index))
    assert torch.equal(draw.lag(index.to(dtype)), draw.lag(index))
    narrow = dape.Draw(
        positions=draw.positions.to(dtype), past=draw.past.to(dtype), future=draw.future.to(dtype), pool=100
    )
    assert torch.equal(narrow.lag(-index), draw.lag(-index))


def test_a_draw_is_not_read_from_its_end():
    draw = draw_positions(5, pool=100, generator=seeded(3))
    with pytest.raises(ValueError, match="position -1 is used"):
        draw.position(torch.tensor([0, -1]))
    with pytest.raises(ValueError, match="position 5 is used"):
        draw.position(torch.tensor([0, 5]))


@pytest.mark.parametrize("values", [torch.ones(2), torch.ones(2, dtype=torch.complex64), torch.ones(2) > 0])
def test_only_integers_are_positions(values):
    with pytest.raises(TypeError, match=f"q_pos must hold integers, got {values.dtype}"):
        require_integers("q_pos", values)
    with pytest.raises(TypeError, match="k_pos must be a tensor of integers, got list"):
        require_integers("k_pos", [1, 2])
    require_integers("q_pos", torch.ones(2, dtype=torch.uint8))


def test_a_draw_of_one_position_reads_the_only_lag():
    assert draw_positions(1, pool=8).lag(torch.zeros(1, 1, dtype=torch.int64)).tolist() == [[0]]


def test_no_positions_are_covered_by_any_draw():
    assert draw_positions(0, pool=8).position(torch.arange(0)).shape == (0,)
