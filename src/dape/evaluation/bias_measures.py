"""What the paper says about f by looking at it, as numbers. Arrays in, numbers out; no torch here.

local or anti-local   the slope of f against log-lag: least squares over lags >= 1 and all samples. Where it falls, f
                      draws attention to what is near; where it rises, to what is far.
input dependence      the part of f's variance that the text makes and not the lag. With v the variance at a fixed lag
                      across n samples, averaged over lags, and m the variance over lags of the mean over samples:
                      v / (v + max(0, m - v / n)). Unbiased v, and m without what v adds to it, so that the number does
                      not grow with the number of samples. 0 for anything that reads positions alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

FLAT = 0.1
"""A logit that changes by less over all lags changes no odds by more than about ten percent."""

Kind = Literal["local", "anti-local", "flat"]


@dataclass(frozen=True, kw_only=True)
class HeadSummary:
    layer: int
    """Counted from 1, as is the head."""
    head: int
    slope: float
    """Of f, per unit of the natural logarithm of the lag."""
    slopes: tuple[float, ...]
    """Of each sample."""
    r2: float
    """The part of f's variance over lags >= 1 and samples that the line explains."""
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
    """By the change from lag 1 to the largest lag."""
    change = slope * np.log(max(int(np.max(lags)), 1))
    if abs(change) < FLAT:
        return "flat"
    return "local" if change < 0 else "anti-local"


def explained(values: np.ndarray, lags: np.ndarray) -> float:
    """R squared of the line through all samples: [sample, key]; 0 for a constant."""
    x, used = _log_lags(lags)
    y = np.asarray(values, np.float64)[:, used]
    # The deviation of a constant may be rounding alone, of which a line would explain something.
    if y.size == 0 or np.ptp(y) == 0:
        return 0.0
    slope = float(slope_against_log_lag(y.mean(axis=0), lags[used]))
    return float(slope**2 * x.var() / y.var())


def input_dependence(values: np.ndarray) -> float:
    """[sample, key], 0 to 1: see above. Samples that are equal give exactly 0."""
    samples = len(values)
    if samples < 2:
        raise ValueError(f"input dependence compares samples; there is {samples}")
    wide = np.asarray(values, np.float64)
    # Relative to the first: a mean of equal numbers may be rounded, and then differ from them.
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
