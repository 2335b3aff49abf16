import pytest
import torch

from dape.positional.alibi import alibi_slopes

EXPONENTS = {
    1: [8.0],
    2: [4.0, 8.0],
    3: [4.0, 8.0, 2.0],
    8: [1.0 * n for n in range(1, 9)],
    12: [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5],
    16: [0.5 * n for n in range(1, 17)],
    32: [0.25 * n for n in range(1, 33)],
}


@pytest.mark.parametrize("heads", EXPONENTS)
def test_item_1_slopes(heads):
    """Spec section 6, item 1."""
    slopes = alibi_slopes(heads, dtype=torch.float64)
    torch.testing.assert_close(-slopes.log2(), torch.tensor(EXPONENTS[heads], dtype=torch.float64))


def test_causal_bias_is_the_true_distance(make):
    """Not the row-shifted +m j of other libraries, which is another function inside DAPE."""
    bias = make("alibi", num_heads=8).bias(torch.tensor([5, 9]), torch.tensor([0, 5]))
    assert bias[0].tolist() == [[-2.5, 0], [-4.5, -2]]
    assert bias[7].tolist() == [[-5 / 256, 0], [-9 / 256, -4 / 256]]


def test_item_10_bidirectional_pattern(make):
    """Spec section 6, item 10: past keys are half a step nearer."""
    n = torch.arange(4)
    unit = [[0, -1, -2, -3], [-0.5, 0, -1, -2], [-1.5, -0.5, 0, -1], [-2.5, -1.5, -0.5, 0]]
    bias = make("alibi", num_heads=2).bias(n, n, causal=False)
    torch.testing.assert_close(bias[0], torch.tensor(unit) / 16)
    torch.testing.assert_close(bias[1], torch.tensor(unit) / 256)
