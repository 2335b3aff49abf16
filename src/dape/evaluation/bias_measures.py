"""Measures of what the paper shows about f in pictures. Arrays in, numbers out; no torch here.

local or anti-local   the slope of f against log-lag: least squares over lags >= 1 and all samples. If it is negative, f
                      favours near keys; if it is positive, distant ones.
input dependence      share of f's variance due to the text rather than the lag. With v the variance at a fixed lag
                      across n samples, averaged over lags, and m the variance over lags of the mean over samples:
                      v / (v + max(0, m - v / n)). v is unbiased, and its part is subtracted from m, so that the number
                      does not depend on the number of samples. It is 0 for any function of positions alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

FLAT = 0.1
"""A head is flat if f changes by less over all lags: odds then change by at most about ten percent."""

Kind = Literal["local", "anti-local", "flat"]


@dataclass(frozen=True, kw_only=True)
class HeadSummary:
    layer: int
    """Counted from 1, as is the head."""
    head: int
    slope: float
    """Slope of f, per unit of the natural logarithm of the lag."""
    slopes: tuple[float, ...]
    """The slope in each sample."""
    r2: float
    """Share of f's variance over lags >= 1 and samples that the line explains."""
    kind: Kind
    input_dependence: float | None
    """None with a single sample: there is nothing to compare."""
    bias_slope: float
    bias_kind: Kind
    bias_input_dependence: float | None


def slope_against_log_lag(values: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Least squares over lags >= 1 along the last axis; 0 where there are fewer than two such lags."""
    x, used = _log_lags(lags)
    if len(x) < 2:
        return np.zeros(values.shape[:-1])
    centred = x - x.mean()
    return np.asarray(values, np.float64)[..., used] @ centred / (centred @ centred)


def _log_lags(lags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    used = np.asarray(lags) >= 1
    return np.log(np.asarray(lags)[used]), used


def kind_of(slope: float, lags: np.ndarray) -> Kind:
    """The kind that follows from the change from lag 1 to the largest lag."""
    change = slope * np.log(max(int(np.max(lags)), 1))
    if abs(change) < FLAT:
        return "flat"
    return "local" if change < 0 else "anti-local"


def explained(values: np.ndarray, lags: np.ndarray) -> float:
    """R squared of the line through all samples: [sample, key]; 0 for a constant."""
    x, used = _log_lags(lags)
    y = np.asarray(values, np.float64)[:, used]
    # Rounding alone may give a constant some variance, of which a line would explain a part.
    if y.size == 0 or np.ptp(y) == 0:
        return 0.0
    slope = float(slope_against_log_lag(y.mean(axis=0), lags[used]))
    return float(slope**2 * x.var() / y.var())


def input_dependence(values: np.ndarray) -> float:
    """The measure for [sample, key], 0 to 1. Equal samples give exactly 0."""
    samples = len(values)
    if samples < 2:
        raise ValueError(f"input dependence compares samples; there is {samples}")
    wide = np.asarray(values, np.float64)
    # Relative to the first sample, as the rounded mean of equal numbers may differ from them.
    within = float((wide - wide[0]).var(axis=0, ddof=1).mean())
    if within == 0:
        return 0.0
    between = max(0.0, float(wide.mean(axis=0).var()) - within / samples)
    return within / (within + between)


def summarise(
    f: np.ndarray, bias: np.ndarray, lags: np.ndarray, *, layers: Sequence[int], heads: Sequence[int]
) -> list[HeadSummary]:
    """One :class:`HeadSummary` per layer and head of [sample, layer, head, key]."""
    return [
        _of_head(f[:, row, column], bias[:, row, column], lags, layer, head)
        for row, layer in enumerate(layers)
        for column, head in enumerate(heads)
    ]


def _of_head(f: np.ndarray, bias: np.ndarray, lags: np.ndarray, layer: int, head: int) -> HeadSummary:
    slopes = slope_against_log_lag(f, lags)
    slope, bias_slope = float(slopes.mean()), float(slope_against_log_lag(bias, lags).mean())
    several = len(f) > 1
    return HeadSummary(
        layer=layer,
        head=head,
        slope=slope,
        slopes=tuple(float(s) for s in slopes),
        r2=explained(f, lags),
        kind=kind_of(slope, lags),
        input_dependence=input_dependence(f) if several else None,
        bias_slope=bias_slope,
        bias_kind=kind_of(bias_slope, lags),
        bias_input_dependence=input_dependence(bias) if several else None,
    )
