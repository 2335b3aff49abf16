"""Errors of everything that turns or oscillates, far out, against 40 digits (docs/numerics.md states them)."""

from typing import Any

import mpmath
import pytest
import torch

import dape
from dape.positional.angles import frequencies
from dape.positional.sinusoidal import sinusoid

POSITIONS = [129, 2047, 32767, 10**5, 10**6, -(10**6)]
HALF_ULP = 2.0**-25
"""Half a unit in the last place of float32 numbers below 1: what rounding a sine costs."""
ANGLE = 2.0**-50
"""What each step of a position may add to the error of its angle: frequency, product and pi in float64."""


def exact_angles(position: int, width: int, base: float = 10000.0, stretch: float = 1.0) -> list[Any]:
    with mpmath.workdps(40):
        return [position * mpmath.mpf(base) ** (-mpmath.mpf(2 * c) / width) / stretch for c in range(width // 2)]


def exact(function, angles) -> torch.Tensor:
    with mpmath.workdps(40):
        return torch.tensor([float(function(a)) for a in angles], dtype=torch.float64)


def bound(position: int) -> float:
    return HALF_ULP + abs(position) * ANGLE


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("width", [64, 768])
def test_a_sinusoid_is_rounded_once(width, position):
    angles = exact_angles(position, width)
    expected = torch.cat([exact(mpmath.sin, angles), exact(mpmath.cos, angles)])
    assert (sinusoid(torch.tensor([position]), width)[0] - expected).abs().max() <= bound(position)
    double = sinusoid(torch.tensor([position]), width, dtype=torch.float64)[0]
    assert (double - expected).abs().max() <= 2.0**-53 + abs(position) * ANGLE


@pytest.mark.parametrize("position", POSITIONS)
def test_transformer_xl_reads_that_sinusoid(make, position):
    pe = make("transformer-xl")
    with torch.no_grad():
        pe.w_r.weight.copy_(torch.eye(32))
    angles = exact_angles(position, 32)
    expected = torch.cat([exact(mpmath.sin, angles), exact(mpmath.cos, angles)])
    assert (pe.encode(torch.tensor([position])).flatten() - expected).abs().max() <= bound(position)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("name, options, stretch", [("rope", {}, 1), ("pi", {"scale": 7.0}, 7)])
def test_rotations_are_rounded_once(make, name, options, stretch, position, dtype):
    """The first channel of each pair is 1: turning gives the cosine and the sine themselves."""
    x = torch.cat([torch.ones(32), torch.zeros(32)]).view(1, 1, 1, 64).to(dtype)
    at = torch.tensor([position])
    q, k = make(name, num_heads=1, head_dim=64, **options).rotate(x, x, dape.Grid.at(at, at, causal=True))
    angles = exact_angles(position, 64, stretch=stretch)
    expected = torch.cat([exact(mpmath.cos, angles), exact(mpmath.sin, angles)])
    allowed = (HALF_ULP if dtype == torch.float32 else 2.0**-53) + abs(position) * ANGLE
    for turned in (q, k):
        assert (turned.flatten() - expected).abs().max() <= allowed


@pytest.mark.parametrize("position", [10**5, 10**6])
def test_yarn_in_float32_is_yarn_in_float64(make, position):
    """At its own stretch, with its own amplitude a = 0.1 ln s + 1: q . k may be off by what rounding q and k costs."""
    pe, at = make("yarn", num_heads=1, head_dim=64), torch.tensor([position])
    x = torch.cat([torch.ones(32), torch.zeros(32)]).view(1, 1, 1, 64)
    grid = dape.Grid.at(at, at, causal=True)
    single, double = (pe.rotate(y, y, grid)[0] for y in (x, x.double()))
    amplitude = double.norm() / x.norm()
    assert amplitude > 1.5
    assert (single - double).abs().max() <= 2 * amplitude * HALF_ULP


@pytest.mark.parametrize("position", POSITIONS)
def test_sandwich_is_rounded_once(make, position):
    with mpmath.workdps(40):
        total = mpmath.fsum(mpmath.cos(a) for a in exact_angles(position, 128)) - 64
        expected = torch.tensor([float(total / 8 * 4 / h) for h in range(1, 5)], dtype=torch.float64)
    bias = make("sandwich").bias_at(torch.tensor([position]), causal=False)[:, 0]
    # The sum is rounded, then the quotient; 8 h / H is exact here.
    assert ((bias - expected) / expected).abs().max() <= 2 * 2.0**-24 + 64 * abs(position) * ANGLE
    grid = make("sandwich").bias_on(dape.Grid.at(torch.tensor([position] * 3), torch.tensor([0, 1]), causal=False))
    assert torch.equal(grid[:, 0, 0], bias), "cells and lags alike"


@pytest.mark.parametrize("name", ["alibi", "kerple", "kerple-power", "fire"])
@pytest.mark.parametrize("position", [10**5, 10**6, 10**7])
def test_biases_of_distances_keep_their_relative_precision(make, name, position):
    """Nothing turns there: what float32 costs is a few units in the last place, however far the key."""
    at, origin = torch.tensor([position]), torch.tensor([0, 1, 17])
    pe = make(name)
    single, double = pe.bias(at, origin), make(name)
    double.load_state_dict(pe.state_dict())
    exact_bias = double.double().bias(at, origin)
    size = exact_bias.abs() if name != "fire" else exact_bias.abs().amax()
    assert ((single - exact_bias).abs() <= 16 * 2.0**-24 * size).all()


def test_devices_without_float64_compute_on_the_cpu(monkeypatch):
    monkeypatch.setattr("dape.positional.angles.WITHOUT_FLOAT64", ("meta",))
    assert frequencies(8, 10.0, torch.device("meta")).device.type == "cpu"
    assert frequencies(8, 10.0, torch.device("cpu")).dtype == torch.float64
