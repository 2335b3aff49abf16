"""Means over seeds, and tests of differences, from rows. No torch here; numpy and scipy are imported when needed.

Differences are between mean nats per token, the logarithm of perplexity, as perplexities may span 4 to 300. Standard
deviations are those of a sample (divided by n - 1).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from dape.positional.names import base_of
from dape.results.numbers import in_words
from dape.results.records import Row

COORDINATES = ("depth", "pairs", "first_position", "last_position")
"""Entries of Row.extra that say where a value was measured: rows that differ in one are different measurements."""
CONFIDENCE = 0.95
RESAMPLES = 4000


# Comparable rows -----------------------------------------------------------------------------------------------------

SHARED_CONDITIONS = ("train_length", "protocol", "mode", "data_hash", "tokenizer", "reach")
"""Fields that must be equal in all rows that are compared."""
CONDITIONS_AT_A_LENGTH = ("k", "windows")
"""Fields that must be equal at each length: short contexts may have fewer tokens to score."""


@dataclass(frozen=True)
class Spread:
    """Values of several seeds."""

    n: int
    mean: float
    std: float | None
    """None for one seed, or if a value is infinite or NaN."""
    low: float
    high: float


@dataclass(frozen=True)
class Results:
    """Comparable rows, by method, length and seed."""

    methods: tuple[str, ...]
    lengths: tuple[int, ...]
    seeds: tuple[int, ...]
    train_length: int | None
    rows: Mapping[tuple[str, int], Mapping[int, Row]]
    """(method, length) -> seed -> row."""
    left_out: tuple[str, ...] = ()
    """Which rows were left out and why: sentences without full stop."""

    def at(self, method: str, length: int) -> Mapping[int, Row]:
        return self.rows.get((method, length), {})

    def spread(self, method: str, length: int) -> Spread | None:
        found = self.at(method, length)
        return spread([row.value for row in found.values()]) if found else None

    def every_row(self) -> list[Row]:
        return [row for by_seed in self.rows.values() for row in by_seed.values()]

    def __bool__(self) -> bool:
        return any(self.rows.values())


def arrange(
    rows: Iterable[Row],
    *,
    metric: str = "perplexity",
    methods: Sequence[str] = (),
    lengths: Sequence[int] = (),
    seeds: Sequence[int] = (),
) -> Results:
    """Sort rows of one metric into a table, without those that are not comparable to the majority.

    ``methods``, ``lengths`` and ``seeds`` select rows, and give methods their order. By default all are kept. Rows for
    a part of the input (a depth, some positions) are left out.
    """
    rows = with_known_reach(latest(rows))
    wanted = [row for row in rows if row.metric == metric and not any(c in row.extra for c in COORDINATES)]
    for name, expected in (("method", methods), ("length", lengths), ("seed", seeds)):
        wanted = [row for row in wanted if not expected or getattr(row, name) in expected]
    kept, left_out = comparable(wanted)
    cells: dict[tuple[str, int], dict[int, Row]] = {}
    for row in kept:
        cells.setdefault((row.method, row.length), {})[row.seed] = row
    return Results(
        methods=tuple(methods) or tuple(dict.fromkeys(row.method for row in wanted)),
        lengths=tuple(sorted(set(lengths) or {row.length for row in wanted})),
        seeds=tuple(sorted(set(seeds) or {row.seed for row in wanted})),
        train_length=kept[0].train_length if kept else None,
        rows=cells,
        left_out=(*left_out, *_repeated_runs(kept)),
    )


def latest(rows: Iterable[Row]) -> list[Row]:
    """The last row of every measurement, at the index of the first: files of rows are only appended to."""
    chosen: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        where = tuple(row.extra.get(name) for name in COORDINATES)
        chosen[row.run, row.length, row.metric, row.protocol, where] = row
    return list(chosen.values())


def with_known_reach(rows: Sequence[Row]) -> list[Row]:
    """Add the reach to rows of older versions, which do not state it: it was the greatest length."""
    greatest = max((row.length for row in rows if _lacks_reach(row)), default=None)
    return [replace(row, reach=greatest) if _lacks_reach(row) else row for row in rows]


def _lacks_reach(row: Row) -> bool:
    return row.reach is None and row.windows is not None


def comparable(rows: Sequence[Row]) -> tuple[list[Row], tuple[str, ...]]:
    """The rows with the most frequent conditions, and a sentence for each group of others."""
    kept, odd = _majority(rows, SHARED_CONDITIONS)
    by_length: dict[int, list[Row]] = {}
    for row in kept:
        by_length.setdefault(row.length, []).append(row)
    agreeing: set[int] = set()
    for group in by_length.values():
        same, others = _majority(group, CONDITIONS_AT_A_LENGTH)
        agreeing |= {id(row) for row in same}
        odd += others
    lengths: dict[tuple[str, str], set[int]] = {}
    for row, difference in odd:
        lengths.setdefault((row.run, difference), set()).add(row.length)
    runs: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for (run, why), at in lengths.items():
        runs.setdefault((why, tuple(sorted(at))), []).append(run)
    sentences = [f"{in_words(names)} at {in_words(at)}: left out, {why}" for (why, at), names in runs.items()]
    return [row for row in kept if id(row) in agreeing], tuple(sentences)


def _majority(rows: Sequence[Row], names: Sequence[str]) -> tuple[list[Row], list[tuple[Row, str]]]:
    """Rows with the most frequent values of ``names`` (the first of several), and the others with their difference."""
    given = [tuple(getattr(row, name) for name in names) for row in rows]
    if not given:
        return [], []
    usual = Counter(given).most_common(1)[0][0]
    kept = [row for row, values in zip(rows, given, strict=True) if values == usual]
    odd = [(row, _difference(names, values, usual)) for row, values in zip(rows, given, strict=True) if values != usual]
    return kept, odd


def _difference(names: Sequence[str], values: Sequence[Any], usual: Sequence[Any]) -> str:
    differing = [(n, v, u) for n, v, u in zip(names, values, usual, strict=True) if v != u]
    return ", ".join(f"{name} {value or 'none'} instead of {most or 'none'}" for name, value, most in differing)


def _repeated_runs(rows: Sequence[Row]) -> list[str]:
    """A sentence for every method and seed with several runs, of which the later ones replace the earlier."""
    runs: dict[tuple[str, int], list[str]] = {}
    for row in rows:
        known = runs.setdefault((row.method, row.seed), [])
        known += [row.run] if row.run not in known else []
    return [
        f"{method} with seed {seed} was run more than once ({', '.join(names)}): at each length the last one counts"
        for (method, seed), names in runs.items()
        if len(names) > 1
    ]


# One method ----------------------------------------------------------------------------------------------------------


def spread(values: Sequence[float]) -> Spread:
    """Mean, sample standard deviation and range. With an infinite value the mean is infinite, with NaN it is NaN."""
    n = len(values)
    mean = sum(values) / n
    std = None
    if n > 1 and math.isfinite(mean):
        std = math.hypot(*(value - mean for value in values)) / math.sqrt(n - 1)
    numbers = [value for value in values if not math.isnan(value)] or [math.nan]
    return Spread(n, mean, std, min(numbers), max(numbers))


def nats(row: Row) -> float:
    """Mean negative log-likelihood per token: the logarithm of perplexity."""
    if row.metric == "nll":
        return row.value
    if row.metric != "perplexity":
        raise ValueError(f"nats per token come from perplexity or nll, not from {row.metric!r}")
    return math.log(row.value) if row.value > 0 else math.nan


# Tests ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """Mean and deviation over several seeds, as papers report them."""

    mean: float
    std: float
    n: int


@dataclass(frozen=True)
class TTest:
    t: float
    df: float
    p: float
    """Two-sided."""
    low: float
    """Bounds of the interval of the difference at CONFIDENCE."""
    high: float


def paired_t(differences: Sequence[float]) -> TTest | None:
    """Test whether the mean of differences is zero. None without a variance: one, equal or infinite values."""
    found = spread(differences)
    if found.std is None or found.std <= 1e-12 * max(1.0, abs(found.mean)):
        return None
    return _t_test(found.mean, found.std / math.sqrt(found.n), found.n - 1)


def welch(a: Summary, b: Summary) -> TTest | None:
    """Test whether two means are equal, from summaries of unpaired values with different variances."""
    if min(a.n, b.n) < 2 or not all(map(math.isfinite, (a.mean, a.std, b.mean, b.std))):
        return None
    va, vb = a.std**2 / a.n, b.std**2 / b.n
    if va + vb == 0:
        return None
    df = (va + vb) ** 2 / (va**2 / (a.n - 1) + vb**2 / (b.n - 1))
    return _t_test(a.mean - b.mean, math.sqrt(va + vb), df)


def log_summary(of: Summary) -> Summary:
    """Mean and deviation of the logarithm of a log-normal variable with the mean and deviation ``of``."""
    variance = math.log1p((of.std / of.mean) ** 2)
    return Summary(math.log(of.mean) - variance / 2, math.sqrt(variance), of.n)


def _t_test(mean: float, error: float, df: float) -> TTest:
    from scipy.special import stdtr, stdtrit  # scipy.stats gives the same numbers, but takes a second to import

    t = mean / error
    reach = float(stdtrit(df, (1 + CONFIDENCE) / 2)) * error
    return TTest(t, df, 2 * float(stdtr(df, -abs(t))), mean - reach, mean + reach)


def t_needed(n: int, p: float) -> float:
    """The t that a paired test of n differences must exceed for a two-sided p."""
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, 1 - p / 2))


def bootstrap_gap(
    method: Sequence[float],
    base: Sequence[float],
    *,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of the mean of method - base over windows, from a paired bootstrap."""
    import numpy as np

    gaps = np.subtract(method, base) if len(method) == len(base) else np.empty(0)
    if len(gaps) < 2 or not np.isfinite(gaps).all():
        raise ValueError("a paired bootstrap needs two or more finite values on each side, window by window")
    generator = np.random.default_rng(seed)
    at_once = max(1, 2**22 // len(gaps))  # bounds the memory of the drawn indices
    means = []
    for start in range(0, resamples, at_once):
        drawn = generator.integers(len(gaps), size=(min(at_once, resamples - start), len(gaps)))
        means.append(gaps[drawn].mean(axis=1))
    low, high = np.quantile(np.concatenate(means), [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """p values with Holm's correction. None stays None and does not count as a test."""
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(order):
        largest = max(largest, min(1.0, p * (len(order) - rank)))
        adjusted[index] = largest
    return adjusted


# Two methods ---------------------------------------------------------------------------------------------------------

Test = Literal["paired t", "welch", "bootstrap", "none"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    method: str
    base: str
    length: int
    n: int
    """Seeds that both have (paired), or the smaller number of seeds (welch)."""
    gap_nll: float
    """Mean nats per token of method minus base; negative if method is better."""
    test: Test = "none"
    """paired t and welch: over seeds. bootstrap: over windows of one seed, which gives an interval but no p."""
    p: float | None = None
    p_holm: float | None = None
    ci: tuple[float, float] | None = None
    """Interval of gap_nll at CONFIDENCE."""
    seeds: tuple[int, ...] = ()
    unpaired: tuple[int, ...] = ()
    """Seeds that only one of the two has, which a paired test leaves out."""
    windows: int | None = None
    note: str = ""
    """Why there is no p or no interval."""

    @property
    def ratio(self) -> float:
        """Perplexity of method / perplexity of base (geometric mean over seeds)."""
        return math.exp(self.gap_nll) if self.gap_nll < 700 else math.inf if self.gap_nll >= 700 else math.nan


def base_pairs(methods: Iterable[str]) -> list[tuple[str, str]]:
    """(dape-X, X) for every X in ``methods`` with and without DAPE."""
    known = list(methods)
    return [(method, base) for method in known if (base := base_of(method)) in known and base is not None]


def compare(
    results: Results, pairs: Sequence[tuple[str, str]] | None = None, *, test: Literal["paired t", "welch"] = "paired t"
) -> list[Comparison]:
    """Compare every pair at every length where both were measured. Holm's correction is over all returned tests."""
    run = compare_at if test == "paired t" else _unpaired
    found = [
        run(results, method, base, length)
        for method, base in (base_pairs(results.methods) if pairs is None else pairs)
        for length in results.lengths
        if results.at(method, length) and results.at(base, length)
    ]
    adjusted = holm([comparison.p for comparison in found])
    return [replace(comparison, p_holm=p) for comparison, p in zip(found, adjusted, strict=True)]


def compare_at(results: Results, method: str, base: str, length: int) -> Comparison:
    """Compare one pair at one length: over the seeds that both have, or over windows if there is one such seed."""
    ours, theirs = results.at(method, length), results.at(base, length)
    seeds = tuple(sorted(ours.keys() & theirs.keys()))
    gaps = [nats(ours[seed]) - nats(theirs[seed]) for seed in seeds]
    plain = Comparison(
        method=method,
        base=base,
        length=length,
        n=len(seeds),
        gap_nll=sum(gaps) / len(gaps) if gaps else math.nan,
        seeds=seeds,
        unpaired=tuple(sorted(ours.keys() ^ theirs.keys())),
    )
    if not seeds:
        return replace(plain, note="no seed in common")
    if not all(map(math.isfinite, gaps)):
        return replace(plain, note="a perplexity is infinite or not a number")
    if len(seeds) == 1:
        return _over_windows(plain, ours[seeds[0]], theirs[seeds[0]])
    tested = paired_t(gaps)
    if tested is None:
        return replace(plain, note="the difference is the same for every seed")
    return replace(plain, test="paired t", p=tested.p, ci=(tested.low, tested.high))


def _over_windows(plain: Comparison, ours: Row, theirs: Row) -> Comparison:
    windows = len(ours.window_nll)
    if windows != len(theirs.window_nll) or windows < 2:
        return replace(plain, note="one seed, and windows do not pair up")
    if not all(map(math.isfinite, (*ours.window_nll, *theirs.window_nll))):
        return replace(plain, note="one seed, and a window has no finite value")
    interval = bootstrap_gap(ours.window_nll, theirs.window_nll)
    return replace(plain, test="bootstrap", ci=interval, windows=windows, note="one seed")


def _unpaired(results: Results, method: str, base: str, length: int) -> Comparison:
    ours, theirs = results.at(method, length), results.at(base, length)
    a, b = (spread([nats(row) for row in side.values()]) for side in (ours, theirs))
    plain = Comparison(
        method=method,
        base=base,
        length=length,
        n=min(a.n, b.n),
        gap_nll=a.mean - b.mean,
        seeds=tuple(sorted(ours.keys() | theirs.keys())),
    )
    if a.std is None or b.std is None:
        return replace(plain, note="two or more finite values are needed on each side")
    tested = welch(Summary(a.mean, a.std, a.n), Summary(b.mean, b.std, b.n))
    if tested is None:
        return replace(plain, note="no spread on either side")
    return replace(plain, test="welch", p=tested.p, ci=(tested.low, tested.high))
