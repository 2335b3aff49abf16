"""The two numbers on arrays whose answers are known."""

import math

import numpy as np
import pytest

from dape.evaluation.bias_measures import (
    FLAT,
    explained,
    input_dependence,
    kind_of,
    slope_against_log_lag,
    summarise,
)

LAGS = np.arange(99, -1, -1)
LOG = np.log(np.maximum(LAGS, 1))


def test_slope_by_hand():
    # Through (ln 1, 3) and (ln 2, 1); the query itself does not count.
    assert slope_against_log_lag(np.array([1.0, 3.0, 99.0]), np.array([2, 1, 0])) == pytest.approx(-2 / math.log(2))
    # Least squares of 0, 1, 5 at x = 0, 1, 3 (times ln 2): sum (x - 4/3) y / sum (x - 4/3)^2 = 24 / 14.
    assert slope_against_log_lag(np.array([5.0, 1, 0, 0]), np.array([8, 2, 1, 0])) == pytest.approx(
        24 / 14 / math.log(2)
    )


def test_slope_along_the_last_axis():
    values = np.stack([2 - 0.5 * LOG, 0.25 * LOG, np.full(100, 7.0)])
    assert slope_against_log_lag(values, LAGS) == pytest.approx([-0.5, 0.25, 0], abs=1e-12)
    assert slope_against_log_lag(values[None, None], LAGS).shape == (1, 1, 3)


@pytest.mark.parametrize("length", [1, 2])
def test_too_few_lags_for_a_slope(length):
    assert (slope_against_log_lag(np.ones((3, length)), LAGS[-length:]) == 0).all()


def test_kinds():
    per_slope = math.log(99)
    assert kind_of(-1.01 * FLAT / per_slope, LAGS) == "local"
    assert kind_of(1.01 * FLAT / per_slope, LAGS) == "anti-local"
    assert kind_of(0.99 * FLAT / per_slope, LAGS) == kind_of(-0.99 * FLAT / per_slope, LAGS) == "flat"
    assert kind_of(5.0, np.array([0])) == kind_of(5.0, np.array([1, 0])) == "flat"


def test_explained():
    line = 3 - 2 * LOG[None]
    assert explained(np.repeat(line, 3, axis=0), LAGS) == pytest.approx(1)
    assert explained(np.concatenate([line, -line]), LAGS) == pytest.approx(0, abs=1e-12)
    assert explained(np.full((3, 100), 0.1), LAGS) == 0
    noise = np.random.default_rng(0).normal(size=(2, 100))
    y = (noise - LOG)[:, LAGS >= 1].ravel()
    x = np.tile(LOG[LAGS >= 1], 2)
    assert explained(noise - LOG, LAGS) == pytest.approx(np.corrcoef(x, y)[0, 1] ** 2)


def test_input_dependence_by_hand():
    # Variance across samples 2 at both keys; means 1 and 11 have variance 25, of which 2 / 2 is due to the samples.
    assert input_dependence(np.array([[0, 10], [2, 12]])) == pytest.approx(2 / 26)
    assert input_dependence(np.array([[0, 2], [2, 4]])) == 1
    assert input_dependence(np.array([[5.0, 5.0], [3.0, 3.0]])) == 1


@pytest.mark.parametrize("samples", [2, 3, 7])
def test_the_same_for_every_text_is_exactly_zero(samples):
    static = np.random.default_rng(0).normal(size=(1, 501)).astype(np.float32)
    assert input_dependence(np.repeat(static, samples, axis=0)) == 0
    assert input_dependence(np.full((samples, 9), 0.1, np.float32)) == 0
    assert input_dependence(np.zeros((samples, 9))) == 0


@pytest.mark.parametrize("samples", [2, 4, 16])
@pytest.mark.parametrize("share", [0.0001, 0.2, 0.8, 1.0])
def test_input_dependence_does_not_hang_on_the_number_of_samples(samples, share):
    generator = np.random.default_rng(0)
    by_lag, by_text = generator.normal(size=20_000), generator.normal(size=(samples, 20_000))
    found = input_dependence(math.sqrt(1 - share) * by_lag + math.sqrt(share) * by_text)
    assert found == pytest.approx(share, abs=0.02)


def test_one_sample_says_nothing_about_the_text():
    with pytest.raises(ValueError, match="compares samples; there is 1"):
        input_dependence(np.zeros((1, 5)))


def test_summary_per_layer_and_head():
    texts = np.random.default_rng(0).normal(size=(3, 100))
    f = np.zeros((3, 2, 3, 100))
    f[:, 0, 1] = -LOG
    f[:, 1, 2] = 2 * LOG + 0.1 * texts
    f[:, 1, 0] = np.array([[-1.0], [0], [1]]) * LOG
    bias = np.zeros_like(f)
    bias[:, 1] = -3 * LOG
    found = summarise(f, bias, LAGS, layers=[2, 5], heads=[1, 4, 6])
    assert [(head.layer, head.head) for head in found] == [(2, 1), (2, 4), (2, 6), (5, 1), (5, 4), (5, 6)]
    assert [head.kind for head in found] == ["flat", "local", "flat", "flat", "flat", "anti-local"]
    assert [head.bias_kind for head in found] == ["flat"] * 3 + ["local"] * 3
    assert found[1].slope == pytest.approx(-1) and found[1].r2 == pytest.approx(1)
    assert found[3].slopes == pytest.approx([-1, 0, 1]) and found[3].slope == pytest.approx(0, abs=1e-12)
    assert [head.input_dependence for head in found[:3]] == [0, 0, 0]
    assert found[5].input_dependence == pytest.approx(0.01 / (0.01 + 4 * LOG.var()), rel=0.15)
    assert found[5].bias_slope == pytest.approx(-3) and found[5].bias_input_dependence == 0


def test_a_single_sample_or_a_single_key():
    (one,) = summarise(-LOG[None, None, None], np.zeros((1, 1, 1, 100)), LAGS, layers=[1], heads=[1])
    assert one.kind == "local" and one.input_dependence is None and one.bias_input_dependence is None
    (short,) = summarise(np.ones((2, 1, 1, 1)), np.ones((2, 1, 1, 1)), np.array([0]), layers=[1], heads=[1])
    assert (short.slope, short.r2, short.kind, short.input_dependence) == (0, 0, "flat", 0)
