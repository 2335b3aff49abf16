"""Items of section 6 of the specification that concern every encoding. The others are in the file of their encoding:
1 alibi; 2 t5, kerple, fire, sandwich, yarn, cope; 4-7 dape; 9 positions, randomized; 10 alibi, golden_deepmind."""

import math

import pytest
import torch

import dape
from dape import Grid
from dape.conformance.make import featured

LENGTH = 7
EVERY = sorted(dape.encodings())


def hooks(pe, q, k, grid):
    """Scores, rotated where the encoding rotates, scaled, with its logits. What enters the layer: the first keys."""
    grid = featured(grid, pe, k[0].transpose(0, 1).flatten(1))
    q, k = pe.rotate(q, k, grid)
    return pe.logits(q @ k.mT / math.sqrt(q.shape[-1]), q, k, grid)


def double(make, name):
    pe = make(name, train_length=5).double()
    with torch.no_grad():
        for p in pe.parameters():
            if not p.any():
                p.normal_()
    return pe


@pytest.mark.parametrize("name", EVERY)
def test_item_3_cached_rows_equal_full_rows(make, name):
    pe = double(make, name)
    q, k = torch.randn(2, 2, 4, LENGTH, 8).double()
    whole = hooks(pe, q, k, Grid.of_length(LENGTH, LENGTH, causal=True))
    for rows in (1, 3, LENGTH):
        cached = hooks(pe, q[:, :, -rows:], k, Grid.of_length(rows, LENGTH, causal=True))
        torch.testing.assert_close(cached.tril(LENGTH - rows), whole.tril()[:, :, -rows:])


@pytest.mark.parametrize("name", EVERY)
def test_item_8_future_tokens_never_change_earlier_logits(make, name):
    pe, grid = double(make, name), Grid.of_length(LENGTH, LENGTH, causal=True)
    q, k = torch.randn(2, 2, 4, LENGTH, 8).double()
    before = hooks(pe, q, k, grid).tril()[:, :, :4]
    q[:, :, 4:] += 10
    k[:, :, 4:] += 10
    torch.testing.assert_close(hooks(pe, q, k, grid).tril()[:, :, :4], before, rtol=0, atol=1e-12)


def fire_at_8191(p):
    u = torch.log1p(p["c"] * 8191) / (torch.log1p(p["c"] * 8191) + 1e-6)
    hidden = (p["first.weight"][:, 0] * u + p["first.bias"]).relu()
    return p["second.weight"] @ hidden + p["second.bias"]


def sandwich_at_8191(p):
    total = sum(math.cos(8191 / 10000 ** (m / 64)) for m in range(64))
    return torch.tensor([(total - 64) * 12 / (8 * head) for head in range(1, 13)], dtype=torch.float64)


AT_8191 = {  # in float64, from a state dict; 12 heads of width 8
    "alibi": lambda p: -8191 * 2.0 ** -torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]).double(),
    "kerple": lambda p: -p["r1"] * torch.log1p(p["r2"] * 8191),
    "kerple-power": lambda p: -p["r1"] * 8191 ** p["r2"],
    "t5": lambda p: p["table"][31] * math.sqrt(8),
    "sandwich": sandwich_at_8191,
    "fire": fire_at_8191,
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", AT_8191)
def test_item_11_half_precision_does_not_round_positions(make, name, dtype):
    """Parameters may be rounded, lags not: in bfloat16, 8191 would become 8192 and 1 + r2 8191 lose 8 more bits."""
    pe = make(name, num_heads=12).to(dtype)
    parameters = {key: value.double() for key, value in pe.state_dict().items()}
    bias = pe.bias(torch.tensor([8191]), torch.tensor([0]))[:, 0, 0]
    torch.testing.assert_close(bias.double(), AT_8191[name](parameters), rtol=2e-5, atol=2e-6)
