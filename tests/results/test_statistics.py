"""Means and tests, against scipy, numbers worked out by hand and the ones known of the paper's Table A3."""

import itertools
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from dape.results.paper import load
from dape.results.records import Row
from dape.results.statistics import (
    Comparison,
    Summary,
    arrange,
    base_of,
    base_pairs,
    bootstrap_gap,
    comparable,
    compare,
    holm,
    latest,
    log_summary,
    nats,
    paired_t,
    spread,
    t_needed,
    welch,
)


def row(method: str, seed: int = 0, length: int = 128, value: float = 4.0, **fields) -> Row:
    given = {
        "run": f"{method}-seed{seed}",
        "train_length": 128,
        "metric": "perplexity",
        "scored_tokens": 640,
        "protocol": "last_k",
        "data_hash": "abc",
        "k": 64,
        "windows": 10,
        **fields,
    }
    return Row(method=method, seed=seed, length=length, value=value, **given)


def pair(ours: dict[int, float], theirs: dict[int, float]) -> list[Row]:
    """dape-kerple and kerple at one length: seed -> perplexity."""
    return [row("dape-kerple", s, value=v) for s, v in ours.items()] + [
        row("kerple", s, value=v) for s, v in theirs.items()
    ]


# Which rows count ----------------------------------------------------------------------------------------------------


def test_of_a_repeated_measurement_the_last_counts():
    rows = [row("rope", value=9.0), row("alibi"), row("rope", value=5.0), row("rope", length=256, value=7.0)]
    assert [(r.method, r.length, r.value) for r in latest(rows)] == [
        ("rope", 128, 5.0),
        ("alibi", 128, 4.0),
        ("rope", 256, 7.0),
    ]


def test_other_metrics_protocols_and_depths_are_other_measurements():
    base = row("rope")
    rows = [base, replace(base, metric="nll"), replace(base, protocol="full")]
    rows += [replace(base, metric="accuracy", extra={"depth": d}) for d in (0, 0.5)]
    assert latest(rows) == rows


def test_arranged_by_method_length_and_seed():
    rows = [row("rope", 1, 256), row("rope", 0, 128), row("alibi", 1, 128, 3.0)]
    results = arrange(rows)
    assert (results.methods, results.lengths, results.seeds) == (("rope", "alibi"), (128, 256), (0, 1))
    assert results.train_length == 128
    assert results.at("alibi", 128) == {1: replace(rows[2], reach=256)}  # old rows: the greatest length
    assert results.at("alibi", 256) == {}
    assert results.spread("alibi", 256) is None
    assert results.left_out == ()


def test_rows_of_other_windows_are_left_out_and_said():
    rows = [row("rope", seed, length, reach=1024) for seed in (0, 1) for length in (128, 256)]
    results = arrange([*rows, row("rope", 2, 128, reach=2048)])
    assert list(results.at("rope", 128)) == [0, 1]
    assert results.left_out == ("rope-seed2 at 128: left out, reach 2048 instead of 1024",)


def test_old_rows_go_with_windows_that_end_where_theirs_did():
    old = [row("rope", 0, length) for length in (128, 256)]
    assert not arrange([*old, row("alibi", 0, 128, reach=256)]).left_out
    assert arrange([*old, row("alibi", 0, 128, reach=512)]).left_out


def test_what_is_expected_orders_and_limits():
    rows = [row("rope"), row("alibi"), row("alibi", 3), row("alibi", length=64)]
    results = arrange(rows, methods=["t5", "alibi"], lengths=[256, 128], seeds=range(2))
    assert (results.methods, results.lengths, results.seeds) == (("t5", "alibi"), (128, 256), (0, 1))
    assert list(results.rows) == [("alibi", 128)]
    assert list(results.at("alibi", 128)) == [0]


def test_parts_of_the_input_do_not_count_as_the_whole():
    bucket = row("rope", metric="nll", extra={"first_position": 0, "last_position": 1})
    assert not arrange([bucket], metric="nll")
    assert arrange([replace(bucket, extra={"commit": "1"})], metric="nll")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("data_hash", "xyz"),
        ("protocol", "full"),
        ("mode", "same_document"),
        ("tokenizer", "bpe"),
        ("train_length", 64),
        ("k", 32),
        ("windows", 5),
    ],
)
def test_rows_under_other_conditions_are_left_out_aloud(field, value):
    rows = [row("alibi"), row("kerple"), row("rope", **{field: value})]
    kept, left_out = comparable(rows)
    assert kept == rows[:2]
    assert len(left_out) == 1
    assert f"rope-seed0 at 128: left out, {field} {value} instead of" in left_out[0]


def test_k_may_change_with_length_but_not_within_one():
    short = [row(m, length=32, k=32) for m in ("alibi", "kerple")]
    usual = [row(m) for m in ("alibi", "kerple")]
    assert comparable([*short, *usual]) == ([*short, *usual], ())


def test_runs_left_out_for_the_same_reason_share_a_sentence():
    rows = [row("alibi", s, n) for s in (0, 1, 2) for n in (128, 256)]
    rows += [row("rope", s, n, data_hash="xyz") for s in (0, 1) for n in (128, 256)]
    assert comparable(rows)[1] == ("rope-seed0 and rope-seed1 at 128 and 256: left out, data_hash xyz instead of abc",)


def test_a_seed_that_was_run_twice_is_said():
    rows = [row("rope", run="first", value=5.0), row("rope", run="second", value=6.0)]
    results = arrange(rows)
    assert results.at("rope", 128)[0].value == 6.0
    assert "rope with seed 0 was run more than once (first, second)" in results.left_out[0]


# One method ----------------------------------------------------------------------------------------------------------


def test_standard_deviation_is_that_of_a_sample():
    found = spread([1.0, 2.0, 6.0])
    assert (found.n, found.mean, found.low, found.high) == (3, 3.0, 1.0, 6.0)
    assert found.std == pytest.approx(math.sqrt((4 + 1 + 9) / 2))


def test_one_value_has_no_deviation():
    assert (spread([4.0]).mean, spread([4.0]).std) == (4.0, None)


def test_infinite_and_missing_values_are_not_hidden():
    assert (spread([4.0, math.inf]).mean, spread([4.0, math.inf]).std) == (math.inf, None)
    broken = spread([4.0, math.nan])
    assert math.isnan(broken.mean)
    assert (broken.std, broken.low, broken.high) == (None, 4.0, 4.0)


def test_nats_are_the_logarithm_of_perplexity():
    assert nats(row("rope", value=math.e**2)) == pytest.approx(2)
    assert nats(row("rope", metric="nll", value=2.0)) == 2.0
    assert nats(row("rope", value=math.inf)) == math.inf
    assert nats(row("rope", value=1.0)) == 0.0  # a model that is always sure and right
    assert math.isnan(nats(row("rope", value=0.0)))
    with pytest.raises(ValueError, match="not from 'accuracy'"):
        nats(row("rope", metric="accuracy"))


def test_base_of_a_method():
    names = ["rope", "dape-kerple", "dape-v2-kerple", "randomized-dape-rope", "randomized-rope", "dape-kerple-power"]
    assert [base_of(n) for n in names] == [None, "kerple", "kerple", "randomized-rope", None, "kerple-power"]
    methods = ["dape-kerple", "alibi", "kerple", "dape-fire", "dape-v2-kerple"]
    assert base_pairs(methods) == [("dape-kerple", "kerple"), ("dape-v2-kerple", "kerple")]


# Tests ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_paired_t_equals_scipy(n):
    a, b = np.random.default_rng(n).normal(size=(2, n))
    ours = paired_t(list(a - b))
    theirs = scipy.stats.ttest_rel(a, b)
    interval = theirs.confidence_interval(0.95)
    assert (ours.t, ours.df, ours.p) == pytest.approx((theirs.statistic, theirs.df, theirs.pvalue))
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high))


def test_paired_t_by_hand():
    """Differences 1, 2, 3: t = 2 / (1 / sqrt 3); with 2 degrees of freedom p = 1 - t / sqrt(t^2 + 2)."""
    t = 2 * math.sqrt(3)
    assert paired_t([1.0, 2.0, 3.0]).p == pytest.approx(1 - t / math.sqrt(t**2 + 2))


@pytest.mark.parametrize(
    "values", [[0.1], [0.0, 0.0], [0.1, 0.1, 0.1], [0.1, math.inf], [math.nan, 0.2], [0.3, 0.1 + 0.2]]
)
def test_without_spread_there_is_no_test(values):
    assert paired_t(values) is None


def test_spread_is_judged_beside_the_mean():
    """What is left of a million after rounding is no spread; the same deviation around nothing is one."""
    assert paired_t([1e6, 1e6 + 2e-7]) is None
    assert paired_t([-1e-7, 1e-7, 3e-7]).df == 2


def test_t_needed_is_the_value_of_the_table():
    assert [round(t_needed(n, 0.05), 2) for n in (2, 3, 4)] == [12.71, 4.30, 3.18]


@pytest.mark.parametrize("sizes", [(3, 3), (2, 7)])
def test_welch_equals_scipy(sizes):
    a, b = (np.random.default_rng(n).normal(n, n, size=n) for n in sizes)
    ours = welch(*(Summary(x.mean(), x.std(ddof=1), len(x)) for x in (a, b)))
    theirs = scipy.stats.ttest_ind(a, b, equal_var=False)
    interval = theirs.confidence_interval(0.95)
    assert (ours.t, ours.df, ours.p) == pytest.approx((theirs.statistic, theirs.df, theirs.pvalue))
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high))


def test_welch_without_spread_or_numbers():
    one = Summary(1.0, 0.0, 3)
    assert welch(one, Summary(2.0, 0.0, 3)) is None
    assert welch(one, Summary(2.0, 0.1, 1)) is None
    assert welch(one, Summary(math.inf, 0.1, 3)) is None


def of_table_a3(method: str, length: int) -> Summary:
    found = next(r for r in load("A3") if (r.method, r.eval_len) == (method, length))
    return Summary(found.value, found.std, found.n_seeds)


@pytest.mark.parametrize(
    ("base", "known"),
    [
        ("alibi", [0.017, 0.010, 0.002, 0.008, 0.021]),
        ("kerple", [0.028, 0.021, 0.011, 0.018, 0.020]),
        ("fire", [0.008, 0.006, 0.010, 0.021, 0.022]),
    ],
)
def test_known_p_values_of_table_a3(base, known):
    """They are Welch's on perplexity itself."""
    lengths = (512, 1024, 2048, 4096, 8192)
    found = [welch(of_table_a3(f"dape-{base}", n), of_table_a3(base, n)).p for n in lengths]
    assert found == pytest.approx(known, abs=0.00055)  # printed with three places
    assert max(found) < 0.05


def test_weaker_claims_of_table_a3():
    def p(other: str, length: int) -> float:
        return welch(of_table_a3("dape-alibi", length), of_table_a3(other, length)).p

    assert (p("rope", 512), p("t5", 512)) == pytest.approx((0.072, 0.22), abs=0.005)
    assert [p("t5", n) for n in (2048, 4096, 8192)] == pytest.approx([0.17, 0.18, 0.08], abs=0.005)


def test_kerple_at_512_depends_on_the_convention_of_the_deviation():
    both = (of_table_a3(m, 512) for m in ("dape-kerple", "kerple"))
    assert welch(*(replace(s, std=s.std * math.sqrt(3 / 2)) for s in both)).p == pytest.approx(0.051, abs=0.0005)


def test_log_summary_is_that_of_a_log_normal():
    logs = scipy.stats.norm(1.4, 0.3)
    values = scipy.stats.lognorm(s=0.3, scale=math.exp(1.4))
    found = log_summary(Summary(values.mean(), values.std(), 5))
    assert (found.mean, found.std, found.n) == pytest.approx((logs.mean(), logs.std(), 5))


@pytest.mark.parametrize(
    ("raw", "adjusted"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.5, 0.9], [1.0, 1.0]),
        ([0.7, 0.8], [1.0, 1.0]),
        ([0.02, None, 0.01], [0.02, None, 0.02]),
        ([], []),
        ([None], [None]),
    ],
)
def test_holm_by_hand(raw, adjusted):
    assert holm(raw) == pytest.approx(adjusted)


def test_holm_equals_its_definition():
    """Reject in ascending order while p <= alpha / (m - rank): adjusted p is the smallest alpha that rejects."""
    raw = np.random.default_rng(0).uniform(0, 0.2, size=7).tolist()

    def rejected(alpha: float) -> set[int]:
        order = sorted(range(7), key=raw.__getitem__)
        return set(itertools.takewhile(lambda i: raw[i] <= alpha / (7 - order.index(i)), order))

    for place, p in enumerate(holm(raw)):
        assert p is not None
        assert place in rejected(p * (1 + 1e-9))
        assert place not in rejected(p * (1 - 1e-9))


def test_bootstrap_equals_every_possible_draw():
    ours, theirs = [1.0, 2.0, 4.0, 4.5], [1.5, 2.0, 3.0, 5.5]
    gaps = np.subtract(ours, theirs)
    means = [np.mean(draw) for draw in itertools.product(gaps, repeat=4)]
    assert bootstrap_gap(ours, theirs, resamples=50_000) == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.13)


def test_bootstrap_of_many_windows_is_drawn_in_parts_that_make_one_draw():
    gaps = np.random.default_rng(3).normal(size=2**21)  # two resamples at a time
    drawn = np.random.default_rng(0).integers(len(gaps), size=(3, len(gaps)))
    expected = np.quantile(gaps[drawn].mean(axis=1), [0.025, 0.975])
    assert bootstrap_gap(gaps, np.zeros_like(gaps), resamples=3) == pytest.approx(expected)


def test_bootstrap_agrees_with_the_normal_interval_for_many_windows():
    generator = np.random.default_rng(1)
    hard = generator.normal(0, 2, size=2000)  # windows differ far more among themselves than methods do
    ours, theirs = hard + generator.normal(-0.1, 0.05, size=2000), hard + generator.normal(0, 0.05, size=2000)
    half = 1.96 * np.std(ours - theirs) / math.sqrt(2000)
    middle = float(np.mean(ours - theirs))
    assert bootstrap_gap(ours, theirs) == pytest.approx((middle - half, middle + half), abs=half / 5)


def test_bootstrap_repeats_itself_and_depends_on_its_seed():
    ours, theirs = np.random.default_rng(2).normal(size=(2, 30))
    assert bootstrap_gap(ours, theirs) == bootstrap_gap(ours, theirs)
    assert bootstrap_gap(ours, theirs, seed=1) != bootstrap_gap(ours, theirs)
    low, high = bootstrap_gap(ours, theirs)
    narrow = bootstrap_gap(ours, theirs, confidence=0.5)
    assert low < narrow[0] < narrow[1] < high


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ([1.0], [2.0]),
        ([1.0, math.inf], [1.0, 2.0]),
        ([1.0], [1.0, 2.0, 3.0]),
        ([1.0, 2.0, 4.0], [1.0]),
        ([1.0, 2.0], [1.0, 2.0, 3.0]),
    ],
)
def test_bootstrap_refuses_what_it_cannot_pair(ours, theirs):
    with pytest.raises(ValueError, match="paired bootstrap"):
        bootstrap_gap(ours, theirs)


# Two methods ---------------------------------------------------------------------------------------------------------


def test_seeds_are_paired_on_the_logarithm():
    ours, theirs = {0: 4.0, 1: 4.4, 2: 5.0}, {0: 4.5, 1: 4.8, 2: 6.0}
    (found,) = compare(arrange(pair(ours, theirs)))
    expected = scipy.stats.ttest_rel(np.log(list(ours.values())), np.log(list(theirs.values())))
    gaps = [math.log(ours[s] / theirs[s]) for s in ours]
    assert (found.method, found.base, found.length, found.n, found.test) == (
        "dape-kerple",
        "kerple",
        128,
        3,
        "paired t",
    )
    assert found.p == found.p_holm == pytest.approx(expected.pvalue)
    assert found.gap_nll == pytest.approx(sum(gaps) / 3)
    assert found.ratio == pytest.approx(math.exp(sum(gaps) / 3))
    assert found.ci[0] < found.gap_nll < found.ci[1]


def test_pairs_do_not_depend_on_the_order_of_rows():
    rows = pair({0: 4.0, 1: 4.4, 2: 5.0}, {0: 4.5, 1: 4.8, 2: 6.0})
    assert compare(arrange(rows))[0] == compare(arrange(rows[::-1]))[0]


def test_only_shared_seeds_are_paired():
    (found,) = compare(arrange(pair({0: 4.0, 1: 4.4, 5: 9.0}, {0: 4.5, 1: 4.8, 2: 6.0})))
    assert (found.n, found.seeds, found.unpaired) == (2, (0, 1), (2, 5))
    assert found.gap_nll == pytest.approx((math.log(4.0 / 4.5) + math.log(4.4 / 4.8)) / 2)


def test_no_shared_seed():
    (found,) = compare(arrange(pair({0: 4.0}, {1: 4.5})))
    assert (found.n, found.p, found.ci, found.note) == (0, None, None, "no seed in common")
    assert math.isnan(found.gap_nll)
    assert math.isnan(found.ratio)


def test_one_seed_has_an_interval_over_windows_and_no_p():
    ours, theirs = np.random.default_rng(3).normal(size=(2, 10)).round(5).tolist()
    rows = [row("dape-kerple", window_nll=tuple(ours)), row("kerple", window_nll=tuple(theirs), value=4.5)]
    (found,) = compare(arrange(rows))
    assert (found.n, found.p, found.p_holm, found.test, found.windows) == (1, None, None, "bootstrap", 10)
    assert found.ci == bootstrap_gap(ours, theirs)


def test_two_windows_are_enough_for_an_interval():
    """Gaps 1 and 3: a mean of two draws is 1, 2 or 3, and each extreme comes up once in four."""
    rows = [row("dape-kerple", window_nll=(2.0, 5.0)), row("kerple", window_nll=(1.0, 2.0))]
    (found,) = compare(arrange(rows))
    assert (found.ci, found.windows) == ((1.0, 3.0), 2)


@pytest.mark.parametrize("windows", [(), (1.0,) * 9, (1.0,) * 9 + (math.inf,)])
def test_one_seed_with_windows_that_do_not_pair_up(windows):
    rows = [row("dape-kerple", window_nll=windows), row("kerple", window_nll=tuple(range(10)))]
    (found,) = compare(arrange(rows))
    assert (found.ci, found.p, found.test) == (None, None, "none")
    assert found.note.startswith("one seed, and")


@pytest.mark.parametrize(
    ("ours", "theirs", "gap", "ratio"),
    [(math.inf, 4.0, math.inf, math.inf), (4.0, math.inf, -math.inf, 0.0), (math.nan, 4.0, math.nan, math.nan)],
)
def test_infinite_perplexity_is_not_tested(ours, theirs, gap, ratio):
    (found,) = compare(arrange(pair({0: ours, 1: 4.0}, {0: theirs, 1: 4.1})))
    assert (found.gap_nll, found.ratio) == pytest.approx((gap, ratio), nan_ok=True)
    assert (found.p, found.ci, found.note) == (None, None, "a perplexity is infinite or not a number")


@pytest.mark.parametrize(
    ("gap", "ratio"), [(699.9, math.exp(699.9)), (700.0, math.inf), (700.5, math.inf), (math.nan, math.nan)]
)
def test_a_ratio_too_large_for_a_number_is_infinite(gap, ratio):
    found = Comparison(method="a", base="b", length=1, n=1, gap_nll=gap)
    assert found.ratio == pytest.approx(ratio, nan_ok=True)


def test_equal_differences_are_not_tested():
    (found,) = compare(arrange(pair({0: 4.0, 1: 5.0}, {0: 4.0, 1: 5.0})))
    assert (found.gap_nll, found.ratio, found.p) == (0.0, 1.0, None)
    assert found.note == "the difference is the same for every seed"


def test_holm_is_over_all_pairs_and_lengths():
    generator = np.random.default_rng(4)
    rows = [
        row(method, seed, length, value=float(4 + generator.normal(0, 0.1)))
        for method in ("alibi", "dape-alibi", "kerple", "dape-kerple", "rope")
        for seed in range(3)
        for length in (128, 256)
    ]
    found = compare(arrange(rows))
    assert [(c.method, c.length) for c in found] == list(itertools.product(("dape-alibi", "dape-kerple"), (128, 256)))
    assert [c.p_holm for c in found] == holm([c.p for c in found])
    assert min(c.p_holm for c in found) == pytest.approx(min(1, 4 * min(c.p for c in found)))


def test_pairs_can_be_chosen():
    rows = pair({0: 4.0}, {0: 4.5})
    assert [(c.method, c.base) for c in compare(arrange(rows), [("kerple", "dape-kerple")])] == [
        ("kerple", "dape-kerple")
    ]
    assert compare(arrange(rows), []) == []


def test_welch_over_seeds_needs_no_pairs():
    ours, theirs = {0: 4.0, 1: 4.4}, {2: 4.5, 3: 4.8, 4: 6.0}
    (found,) = compare(arrange(pair(ours, theirs)), test="welch")
    expected = scipy.stats.ttest_ind(np.log(list(ours.values())), np.log(list(theirs.values())), equal_var=False)
    assert (found.test, found.n, found.seeds) == ("welch", 2, (0, 1, 2, 3, 4))
    assert (found.method, found.base, found.length) == ("dape-kerple", "kerple", 128)
    assert found.p == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval(0.95)
    assert found.ci == pytest.approx((interval.low, interval.high))
    assert found.gap_nll == pytest.approx(sum(found.ci) / 2)
    (alone,) = compare(arrange(pair({0: 4.0}, theirs)), test="welch")
    assert (alone.test, alone.p) == ("none", None)


def test_rows_need_no_heavy_package_until_something_is_tested():
    code = (
        "import sys, dape.results.statistics, dape.report.tables, dape.report.summary, dape.results.paper;"
        "print({'torch', 'numpy', 'scipy', 'matplotlib', 'rich'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
