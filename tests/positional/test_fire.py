import math

import pytest
import torch

from dape import Draw, Grid


def cell(pe, i, j):
    """The input of FIRE's MLP at one query and key."""
    return pe.normalised_distance(Grid(q_index=torch.tensor([i]), k_index=torch.tensor([j]), causal=True)).item()


@pytest.mark.parametrize(
    "threshold, i, j, expected",
    [
        (512.0, 1, 0, 0.024098),
        (512.0, 10, 0, 0.175255),
        (512.0, 511, 0, 0.999515),
        (512.0, 1023, 512, 0.852409),
        (512.0, 8191, 8190, 0.014205),
        (64.0, 10, 0, 0.346317),
    ],
)
def test_item_2_oracle(make, threshold, i, j, expected):
    """Spec section 6, item 2; c = 0.1 and a multiplier of 1 are the initial values."""
    assert cell(make("fire", threshold=threshold), i, j) == pytest.approx(expected, abs=1e-6)
    assert cell(make("fire", train_length=int(threshold)), i, j) == pytest.approx(expected, abs=1e-6)


def psi(x, c):
    return math.log(abs(c * x) + 1)


@pytest.mark.parametrize("activation", ["relu", "leaky_relu"])
def test_bias_in_double(make, activation):
    pe = make("fire", mlp_width=5, threshold=6.0, activation=activation).double()
    with torch.no_grad():
        pe.c.fill_(-0.3)
        pe.threshold_multiplier.fill_(-1.25)
    n = torch.arange(12)
    bias = pe.bias(n, n)
    w1, b1 = pe.first.weight[:, 0], pe.first.bias
    for i in range(12):
        for j in range(i + 1):
            u = psi(i - j, 0.3) / (psi(max(i, 7.5), 0.3) + 1e-6)
            hidden = w1 * u + b1
            hidden = torch.where(hidden > 0, hidden, hidden * (0.01 if activation == "leaky_relu" else 0.0))
            expected = pe.second.weight @ hidden + pe.second.bias
            torch.testing.assert_close(bias[:, i, j], expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("form", ["past_bonus", "symmetric", "tril"])
def test_bidirectional_normaliser_is_the_largest_distance_of_the_row(make, form):
    pe = make("fire", threshold=3.0, bidirectional=form).double()
    u = pe.normalised_distance(Grid.of_length(9, 9, causal=False))

    def distance(i, j):
        if form == "tril":
            return max(i - j, 0)
        return abs(i - j) - (0.5 if form == "past_bonus" and j < i else 0)

    for i in range(9):
        far = max(3, *(distance(i, j) for j in range(9)))
        for j in range(9):
            assert u[i, j].item() == pytest.approx(psi(distance(i, j), 0.1) / (psi(far, 0.1) + 1e-6), abs=1e-7)
    assert u.max() <= 1


def test_drawn_lags_are_normalised_by_drawn_lags(make):
    pe = make("fire", threshold=3.0).double()
    drawn = [0, 4, 5, 9]
    table = torch.tensor(drawn)
    grid = Grid.of_length(4, 4, causal=True).read_through(Draw(positions=table, past=table, future=table, pool=10))
    u = pe.normalised_distance(grid)
    for i in range(4):
        for j in range(i + 1):
            expected = psi(drawn[i - j], 0.1) / (psi(max(drawn[i], 3), 0.1) + 1e-6)
            assert u[i, j].item() == pytest.approx(expected, abs=1e-7)


def test_a_row_reaches_back_to_zero_even_if_the_first_keys_left_the_cache(make):
    pe = make("fire", threshold=4.0)
    whole = pe.bias(torch.arange(12), torch.arange(12))
    window = pe.bias(torch.tensor([10, 11]), torch.arange(8, 12))
    torch.testing.assert_close(window, whole[:, 10:, 8:])


def test_parameters_learn_and_start_at_the_published_values(make):
    pe = make("fire", threshold=4.0)
    assert pe.c.item() == pytest.approx(0.1) and pe.threshold_multiplier.item() == 1.0
    assert pe.first.weight.shape == (32, 1) and pe.second.weight.shape == (4, 32)
    n = torch.arange(9)
    pe.bias(n, n).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in pe.parameters())


def test_inside_dape_the_activation_is_leaky_and_the_width_follows(make):
    n = torch.arange(9)
    inside, alone = make("dape-fire", hidden=7).base, make("fire", mlp_width=7)
    alone.load_state_dict(inside.state_dict())
    leaky = make("fire", mlp_width=7, activation="leaky_relu")
    leaky.load_state_dict(inside.state_dict())
    torch.testing.assert_close(inside.bias(n, n), leaky.bias(n, n))
    assert not torch.allclose(inside.bias(n, n), alone.bias(n, n))
    assert make("dape-fire", hidden=7, mlp_width=3).base.first.weight.shape == (3, 1)
    assert make("dape-v2-fire", hidden=7).base.first.weight.shape == (7, 1)
