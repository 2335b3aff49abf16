import math

import pytest
import torch

LAGS = torch.tensor([0, 1, 8, 64, 512, 8191])


def test_item_2_oracle(make):
    """Spec section 6, item 2. With 8 heads the divisor of head n is n."""
    bias = make("sandwich", num_heads=8).bias(torch.tensor([8191]), 8191 - LAGS)[:, 0]
    expected = torch.tensor([0, -1.9063, -18.28, -33.48, -49.96, -64.84])
    for head in range(8):
        torch.testing.assert_close(bias[head] * (head + 1), expected, rtol=0, atol=0.0051)


@pytest.mark.parametrize("width, base, heads", [(128, 10000.0, 4), (6, 50.0, 3)])
def test_formula_in_double(make, width, base, heads):
    pe = make("sandwich", num_heads=heads, width=width, base=base).double()
    bias = pe.bias(torch.tensor([8191]), 8191 - LAGS)[:, 0]
    for n, lag in enumerate(LAGS.tolist()):
        total = sum(math.cos(lag / base ** (2 * m / width)) for m in range(width // 2))
        for head in range(1, heads + 1):
            assert bias[head - 1, n].item() == pytest.approx((total - width / 2) * heads / (8 * head), abs=1e-9)


def test_single_precision_holds_at_large_lags(make):
    pe, far = make("sandwich"), torch.tensor([8191])
    single = pe.bias(far, torch.tensor([0]))
    torch.testing.assert_close(single.double(), pe.double().bias(far, torch.tensor([0])), rtol=1e-4, atol=0)


def test_no_parameters_and_no_sense_of_direction(make):
    pe, n = make("sandwich"), torch.arange(6)
    bias = pe.bias(n, n, causal=False)
    assert not list(pe.parameters())
    torch.testing.assert_close(bias, bias.mT)


@pytest.mark.parametrize("width", [1, 7])
def test_odd_widths_are_refused(make, width):
    with pytest.raises(ValueError, match=f"width must be even, got {width}"):
        make("sandwich", width=width)
