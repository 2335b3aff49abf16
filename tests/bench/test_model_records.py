"""The arithmetic of depth in ``dape bench model``: lines through depths, whole models, ratios."""

from dataclasses import replace

import pytest
from tests.bench.model_samples import GROUP, SAMPLES

from dape.bench.model_records import Line, lines, make_records
from dape.bench.records import Spread
from dape.results import paper


def test_a_line_through_two_depths():
    line = Line.through({1: 5.0, 2: 7.0})
    assert (line.fixed, line.per_layer, line.at(24)) == (3.0, 2.0, 51.0)


def test_a_line_through_three_depths_is_that_of_least_squares():
    line = Line.through({1: 1.0, 2: 3.0, 6: 4.0})  # slope 7 / 14, worked out by hand
    assert line.per_layer == pytest.approx(0.5) and line.fixed == pytest.approx(8 / 3 - 1.5)


def test_a_line_needs_two_depths_of_one_round():
    assert lines({2: [1.0, 2.0]}) == []
    assert [line.per_layer for line in lines({1: [1.0, 2.0], 3: [5.0]})] == [2.0]


def test_the_whole_model_is_extrapolated_within_rounds():
    """Round 2 meets a machine ten times slower. Per layer: kerple 1, 10, 1; dape-kerple 1.5, 15, 1.25."""
    found = {(row["encoding"], row["layers"]): row for row in make_records(GROUP, SAMPLES)}
    assert list(found) == [(e, n) for n in (1, 2, 24) for e in ("kerple", "dape-kerple")]
    whole, base = found["dape-kerple", 24], found["kerple", 24]
    assert base["samples_ms"] == [24_000.0, 240_000.0, 24_000.0]
    assert whole["samples_ms"] == [35_500.0, 355_000.0, 29_750.0] and whole["ms"] == 35_500.0
    assert whole["vs_base"] == pytest.approx(35.5 / 24)
    assert whole["vs_base_q1"] == pytest.approx((35.5 + 29.75) / 2 / 24)
    assert base["vs_dape_kerple"] == pytest.approx(24 / 35.5) and base["vs_base"] is None
    assert (whole["per_layer_ms"], whole["fixed_ms"]) == (1500.0, -500.0)
    assert (whole["extrapolated"], whole["layers_measured"], whole["note"]) == (True, [1, 2], "")
    measured = found["dape-kerple", 2]
    assert not measured["extrapolated"] and Spread.found_in(measured, "ms") == Spread(2500.0, 2375.0, 13750.0)
    assert measured["vs_base"] == 1.25


def test_a_whole_model_that_was_timed_is_not_extrapolated():
    found = make_records(replace(GROUP, layers=2), SAMPLES)
    assert [(row["layers"], row["extrapolated"]) for row in found] == [(1, False), (1, False), (2, False), (2, False)]


def test_one_depth_says_nothing_about_others():
    found = make_records(GROUP, {("kerple", 2): [1.0]})
    assert [(row["layers"], row["per_layer_ms"], row["note"]) for row in found] == [(2, None, "1 of 3 rounds")]


def test_noise_is_named_and_gives_no_ratio():
    """A layer that takes less than no time; continued to 24 layers, the whole model would."""
    samples = {**SAMPLES, ("kerple", 2): [0.5, 20.0, 2.0]}
    *_, kerple, wrapped = make_records(GROUP, samples)
    assert kerple["samples_ms"][0] < 0 and kerple["note"] == "noisy: 1 of 3"
    assert Spread.found_in(wrapped, "vs_base") == Spread.of([355 / 240, 29.75 / 24]) and wrapped["note"] == ""


def test_an_interrupted_round_counts_as_far_as_it_went():
    samples = {("kerple", 1): [1.0, 1.0], ("kerple", 2): [2.0], ("dape-kerple", 1): [1.0], ("dape-kerple", 2): []}
    found = make_records(GROUP, samples)
    assert [(row["encoding"], row["layers"]) for row in found] == [
        ("kerple", 1),
        ("dape-kerple", 1),
        ("kerple", 2),
        ("kerple", 24),
    ]
    assert [row["note"] for row in found] == ["2 of 3 rounds", *["1 of 3 rounds"] * 3]


def test_ratios_of_the_paper():
    *_, kerple, wrapped = make_records(GROUP, SAMPLES)
    published = {
        (r.model, r.method): r.value for r in paper.load("A1") if r.metric == "time_ratio_to_dape_kerple"
    }  # its own quotients
    assert kerple["paper_vs_dape_kerple"] == pytest.approx(published["350M", "kerple"], abs=2e-4)
    assert wrapped["paper_vs_base"] == pytest.approx(224.22 / 189.91) and kerple["paper_vs_base"] is None
    for other in (replace(GROUP, as_published=False), replace(GROUP, size="tiny")):
        assert {row["paper_vs_dape_kerple"] for row in make_records(other, SAMPLES)} == {None}
