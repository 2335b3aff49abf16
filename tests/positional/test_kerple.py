import math

import pytest
import torch

NAMES = ["kerple", "kerple-power"]


def with_values(pe, r1, r2):
    with torch.no_grad():
        pe.r1.copy_(torch.as_tensor(r1))
        pe.r2.copy_(torch.as_tensor(r2))
    return pe


def at_lags(pe, lags, *, causal=True):
    """[head, lag]; the query stands at 10000."""
    return pe.bias(torch.tensor([10000]), 10000 - torch.tensor(lags), causal=causal)[:, 0]


def test_item_2_logarithmic_oracle(make):
    """Spec section 6, item 2."""
    bias = at_lags(with_values(make("kerple"), 1.0, 1.0), [0, 1, 7, 511, 8191])
    expected = torch.tensor([0, -0.693147, -2.079442, -6.238325, -9.010913])
    torch.testing.assert_close(bias, expected.expand(4, 5), rtol=0, atol=1e-6)


def test_each_head_has_its_own_numbers(make):
    r1, r2 = [0.5, 1.0, 1.5, 2.0], [1.0, 0.5, 0.25, 2.0]
    log = at_lags(with_values(make("kerple"), r1, r2), [3])
    power = at_lags(with_values(make("kerple-power"), r1, r2), [3])
    for h in range(4):
        assert log[h].item() == pytest.approx(-r1[h] * math.log(1 + r2[h] * 3), rel=1e-6)
        assert power[h].item() == pytest.approx(-r1[h] * 3 ** r2[h], rel=1e-6)


@pytest.mark.parametrize("name, high1, high2", [("kerple", 2.0, 1.0), ("kerple-power", 1.0, 2.0)])
def test_initial_range(make, name, high1, high2):
    pe = make(name, num_heads=4000)
    for parameter, high in ((pe.r1, high1), (pe.r2, high2)):
        assert parameter.min() >= 0.01
        assert high * 0.99 < parameter.max() <= high
        assert parameter.mean().item() == pytest.approx(high / 2, rel=0.05)


@pytest.mark.parametrize("name, top", [("kerple", 5.0), ("kerple-power", 2.0)])
def test_project_puts_values_back_in_place(make, name, top):
    pe = with_values(make(name), [-1.0, 0.0, 0.5, 5.0], [-1.0, 0.0, 0.5, 5.0])
    before = pe.r2
    pe.project_()
    assert pe.r2 is before and pe.r2.requires_grad
    torch.testing.assert_close(pe.r1.detach(), torch.tensor([0.01, 0.01, 0.5, 5.0]))
    torch.testing.assert_close(pe.r2.detach(), torch.tensor([0.01, 0.01, 0.5, top]))


@pytest.mark.parametrize("name", NAMES)
def test_values_out_of_range_count_as_the_nearest_allowed_and_keep_their_gradient(make, name):
    """An optimizer step may leave the range; the forward pass neither edits the parameter nor gets stuck."""
    pe = with_values(make(name), -0.5, -0.5)
    bias = at_lags(pe, [3])
    expected = -0.01 * math.log(1.03) if name == "kerple" else -0.01 * 3**0.01
    torch.testing.assert_close(bias, torch.full((4, 1), expected))
    assert pe.r1.tolist() == [-0.5] * 4
    bias.sum().backward()
    # d/dr1 is the kernel itself; d/dr2 is -r1 d / (1 + r2 d), or -r1 d^r2 ln d. Both at r1 = r2 = 0.01.
    slope = -0.03 / 1.03 if name == "kerple" else expected * math.log(3)
    torch.testing.assert_close(pe.r1.grad, torch.full((4,), expected / 0.01))
    torch.testing.assert_close(pe.r2.grad, torch.full((4,), slope))


def test_power_above_its_ceiling(make):
    torch.testing.assert_close(at_lags(with_values(make("kerple-power"), 1.0, 7.0), [3]), torch.full((4, 1), -9.0))


def test_gradient_of_the_power_at_lag_zero_is_zero(make):
    pe = with_values(make("kerple-power").double(), 0.7, [0.01, 0.5, 1.0, 2.0])
    at_lags(pe, [0]).sum().backward()
    assert pe.r1.grad.tolist() == [0, 0, 0, 0]
    assert pe.r2.grad.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "form, distances",
    [("past_bonus", [1, 0, 0.5, 1.5]), ("symmetric", [1, 0, 1, 2]), ("tril", [0, 0, 1, 2])],
)
@pytest.mark.parametrize("name", NAMES)
def test_bidirectional_forms(make, name, form, distances):
    """Lags -1, 0, 1, 2. Kerple has no bidirectional form in any source; ALiBi's is the default here."""
    bias = at_lags(with_values(make(name, bidirectional=form), 1.0, 1.0), [-1, 0, 1, 2], causal=False)
    expected = [-math.log1p(d) if name == "kerple" else -float(d) for d in distances]
    torch.testing.assert_close(bias, torch.tensor(expected).expand(4, 4))
    assert torch.equal(bias, at_lags(with_values(make(name), 1.0, 1.0), [-1, 0, 1, 2], causal=False)) == (
        form == "past_bonus"
    )
