"""The bounds that implementations are held to, by hand: a bound that grew by mistake would let everything pass."""

import math

import pytest
import torch

from dape.ops.attention.bounds import bounds, relative_errors, steady_rows


@pytest.mark.parametrize(
    ("operands", "tf32", "rounding"),
    [
        (torch.float32, False, 0.0),
        (torch.float32, True, 2**-11),
        (torch.float16, False, 2**-11),
        (torch.bfloat16, True, 2**-8 + 2**-11),
    ],
)
def test_bounds_of_a_hundred_terms(operands, tf32, rounding):
    found = bounds(operands, 100, tf32=tf32)
    assert found.of("output") == 4 * rounding + 100 / 2**24
    assert found.of("q") == found.of("f.first.weight") == 8 * rounding + 800 / 2**24


def test_errors_are_relative_to_the_largest_entry_or_to_a_part_of_the_largest_of_all():
    exact = {"output": torch.tensor([2.0, -4.0]), "q": torch.tensor([1e-6]), "k": torch.tensor([0.5])}
    found = {"output": torch.tensor([2.5, -4.0]), "q": torch.tensor([3e-6]), "k": torch.tensor([math.nan])}
    errors = relative_errors(found, {name: value.double() for name, value in exact.items()})
    assert errors == pytest.approx({"output": 0.5 / 4, "q": 2e-6 / (1e-3 * 4), "k": math.inf}, rel=1e-6)


@pytest.mark.parametrize(("operands", "slack"), [(torch.float32, 8), (torch.float16, 20)])
def test_how_near_to_zero_a_hidden_unit_may_be(operands, slack):
    """q k = 1 and pre = -1, so that the unit is 0 plus what is added. With 4 terms, 4 2^-24 (1 + 1) may be lost in
    sums, and in float16 3 (2^-11)^2 in products: 8 and 20 times 2^-24."""
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    for units in (slack - 0.5, slack + 0.5):
        for sign in (1, -1):
            pre = -one + sign * units * 2**-24
            steady = steady_rows(one, one, one[0, 0], pre, operands=operands, terms=4)
            assert steady.item() == (units > slack)


def test_one_unit_at_one_key_makes_its_row_unsteady():
    """Scores are [[1, 3], [2, 6]]; the second unit is 0 at the second key of the first row, all others are far off."""
    q, k = torch.tensor([1.0, 2.0]).view(1, 1, 2, 1).double(), torch.tensor([1.0, 3.0]).view(1, 1, 2, 1).double()
    pre = torch.full((1, 2, 2, 2), 10.0).double()
    pre[0, 1, 0, 1] = -3
    steady = steady_rows(q, k, torch.ones(2, 1).double(), pre, operands=torch.float32, terms=4)
    assert steady.tolist() == [[[[False], [True]]]]
