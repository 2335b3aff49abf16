"""The words follow from the rows: each case is one in which a careless sentence would be wrong."""

import math
import re
from dataclasses import replace

import pytest

from dape.report.summary import summary

BETTER = {"kerple": {64: 4.5, 128: 4.0, 256: 4.0, 512: 4.2}, "dape-kerple": {64: 4.4, 128: 3.6, 256: 3.5, 512: 3.4}}
# Three seeds whose difference is about the same: significant even with three.
CLEAR = {
    "kerple": {128: [4.00, 4.10, 4.20], 256: [4.0, 4.1, 4.2]},
    "dape-kerple": {128: [3.60, 3.70, 3.77], 256: [3.5, 3.6, 3.66]},
}


def sections(text: str) -> dict[str, list[str]]:
    """Heading -> bullet points."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return {title: [line[2:] for line in body.splitlines() if line.startswith("- ")] for title, body in pairs}


@pytest.fixture
def said(make_rows):
    """Sections of the summary of {method: {length: values}}."""

    def say(values, expected=None, **fields):
        return sections(summary(make_rows(values, **fields), **(expected or {})))

    return say


# Lowest perplexity ---------------------------------------------------------------------------------------------------


def test_one_method_is_lowest_everywhere(said):
    lines = said(BETTER)["Lowest perplexity"]
    assert lines == ["dape-kerple has the lowest perplexity at all 4 lengths (2.2% to 19.0% below the next, kerple)."]


def test_lengths_with_the_same_winner_are_told_together(said):
    values = {"a": {64: 1, 128: 1, 256: 1, 512: 9, 1024: 1}, "b": {64: 2, 128: 2, 256: 2, 512: 3, 1024: 2}}
    lines = said(values)["Lowest perplexity"]
    assert lines == [
        "a has the lowest perplexity at 64 to 256 and 1024 (50.0% below the next, b).",
        "b has the lowest perplexity at 512 (66.7% below the next, a).",
    ]


def test_a_tie_has_no_winner(said):
    lines = said({"a": {128: 4.0}, "b": {128: 4.0}, "c": {128: 5.0}})["Lowest perplexity"]
    assert lines == ["a and b have the same, lowest perplexity at 128."]


def test_a_lead_that_may_be_chance_is_called_that(said, make_rows, with_windows):
    assert "includes zero" not in said(CLEAR)["Lowest perplexity"][0]
    noisy = {"a": {128: [4.0, 4.2, 4.4], 256: [4.0, 4.1, 4.2]}, "b": {128: [4.1, 4.1, 4.45], 256: [5.0, 5.1, 5.2]}}
    (line,) = said(noisy)["Lowest perplexity"]
    assert line.endswith("; at 128 the 95% interval of that difference includes zero.")
    one_seed = with_windows(make_rows({"a": {128: 4.0, 256: 4.0}, "b": {128: 4.002, 256: 4.2}}), noise=0.05)
    (line,) = sections(summary(one_seed))["Lowest perplexity"]
    assert line.endswith("; at 128 the 95% interval of that difference includes zero.")


def test_what_was_measured_by_some_only_is_said(said):
    lines = said({"a": {128: 4.0, 256: 4.0}, "b": {128: 3.0}, "c": {128: 5.0, 256: 4.5}})["Lowest perplexity"]
    assert lines[0].startswith("b has the lowest perplexity at 128 (")
    assert lines[1].startswith("a has the lowest perplexity at 256, among the 2 of 3 methods measured there (11.1%")
    lines = said({"a": {128: 4.0, 256: 4.0}, "b": {128: 3.0}})["Lowest perplexity"]
    assert lines[1] == "Only a was measured at 256."


def test_infinity_and_nan_never_win(said):
    found = said({"a": {128: math.inf, 256: math.nan}, "b": {128: 4.0, 256: math.inf}})
    assert found["Lowest perplexity"] == [
        "b has the lowest perplexity at 128, the only finite one.",
        "No method has a finite perplexity at 256.",
    ]
    assert "a has perplexity inf and nan at 128 and 256." in found["Caveats"]


def test_one_method_alone(said):
    found = said({"rope": {128: 4.0, 256: 9.0}})
    assert found["Lowest perplexity"] == ["Only rope was measured: there is nothing to compare it with."]
    assert "DAPE against its base" not in found


def test_no_rows():
    assert summary([]) == "No perplexity was measured.\n"


# Pairs ---------------------------------------------------------------------------------------------------------------


def test_lower_everywhere(said):
    line = said(BETTER)["DAPE against its base"][0]
    assert line.startswith(
        "dape-kerple against kerple: lower at all 4 lengths. "
        "10.0% lower at 128 (training length); 19.0% lower at 512 (longest)."
    )


def test_dape_worse_than_its_base_is_said_as_plainly(said):
    worse = {"kerple": BETTER["dape-kerple"], "dape-kerple": BETTER["kerple"]}
    line = said(worse)["DAPE against its base"][0]
    assert line.startswith(
        "dape-kerple against kerple: higher at all 4 lengths. "
        "11.1% higher at 128 (training length); 23.5% higher at 512 (longest)."
    )


def test_lower_here_and_higher_there(said):
    values = {"alibi": {64: 4.0, 128: 4.0, 256: 4.0}, "dape-alibi": {64: 4.0, 128: 4.2, 256: 3.8}}
    line = said(values)["DAPE against its base"][0]
    assert "lower at 256, higher at 128, equal at 64. 5.0% higher at 128 (training length); 5.0% lower at 256" in line


def test_equal_everywhere_gives_no_amount(said):
    values = {"alibi": {128: 4.0, 256: 5.0}, "dape-alibi": {128: 4.0, 256: 5.0}}
    line = said(values)["DAPE against its base"][0]
    assert line.startswith("dape-alibi against alibi: equal at 128 and 256. No test")


def test_infinite_bases(said):
    values = {"rope": {128: 4.0, 256: math.inf, 512: math.inf}, "dape-rope": {128: 3.0, 256: 5.0, 512: math.inf}}
    line = said(values)["DAPE against its base"][0]
    assert "lower at 128 and 256, undecided at 512." in line
    assert "No test at 256 and 512: a perplexity is infinite or not a number." in line
    line = said({"rope": {128: 4.0, 256: math.inf}, "dape-rope": {128: 3.0, 256: 5.0}})["DAPE against its base"][0]
    assert "finite against infinite at 256 (longest)" in line


def test_no_common_seed_decides_nothing(make_rows):
    rows = [*make_rows({"rope": {128: 4.0}}), *(replace(r, seed=1) for r in make_rows({"dape-rope": {128: 3.0}}))]
    found = sections(summary(rows))
    assert found["DAPE against its base"] == [
        "dape-rope against rope: undecided at 128. No test at 128: no seed in common."
    ]
    assert "Missing: rope, seed 1, at 128." in found["Caveats"]


def test_training_length_missing(said):
    values = {"kerple": {64: 4.0, 256: 4.0}, "dape-kerple": {64: 3.0, 128: 3.0, 256: 3.0}}
    line = said(values)["DAPE against its base"][0]
    assert (
        "lower at 64 and 256. 25.0% lower at 256 (longest). At the training length 128 not both were measured." in line
    )


def test_pairs_without_a_common_length_or_without_base(said):
    lines = said({"kerple": {64: 4.0}, "dape-kerple": {128: 3.0}})["DAPE against its base"]
    assert lines == ["dape-kerple and kerple share no length."]
    lines = said({"rope": {128: 4.0}, "dape-kerple": {128: 3.0}})["DAPE against its base"]
    assert lines == ["No encoding was measured both with and without DAPE."]
    assert "DAPE against its base" not in said({"rope": {128: 4.0}, "alibi": {128: 3.0}})


def test_several_seeds_are_tested_with_correction(said):
    first, how, few = said(CLEAR)["DAPE against its base"]
    found = re.search(r"Paired t-test over 3 seeds: p = ([\d.]+) at 128 \(Holm ([\d.]+)\); p = ([\d.]+) at 256", first)
    p, adjusted, other = map(float, found.groups())
    assert p < 0.05
    assert adjusted == pytest.approx(max(p, 2 * min(p, other)), rel=0.1)
    assert "below 0.05 after Holm's correction at 128 and 256." in first
    assert "geometric mean" in how
    assert "over 2 tests." in how
    assert few.startswith(
        "3 seeds are very few: with 2 degrees of freedom, p < 0.05 needs a mean difference of more than 2.5"
    )


def test_noise_is_not_called_significant(said):
    noisy = {"kerple": {128: [4.0, 4.1, 4.6]}, "dape-kerple": {128: [3.9, 4.3, 4.2]}}
    assert "after Holm's correction at no length" in said(noisy)["DAPE against its base"][0]


def test_significance_is_judged_after_the_correction(said):
    """Of five lengths one has p below 0.05 by itself, as is to be expected of five."""
    one, other = [4.00, 4.10, 4.20], [3.90, 4.04, 4.10]
    noisy = [4.20, 3.90, 4.15]
    values = {"kerple": {n: one for n in (8, 16, 32, 64, 128)}, "dape-kerple": {n: noisy for n in (8, 16, 32, 64)}}
    values["dape-kerple"][128] = other
    line = said(values)["DAPE against its base"][0]
    assert float(re.search(r"p = ([\d.]+) at 128", line)[1]) < 0.05
    assert "after Holm's correction at no length" in line


def test_two_seeds_are_called_very_few(said):
    two = {m: {n: v[:2] for n, v in values.items()} for m, values in CLEAR.items()}
    lines = said(two)["DAPE against its base"]
    assert "Paired t-test over 2 seeds" in lines[0]
    assert lines[2].startswith(
        "2 seeds are very few: with 1 degree of freedom, p < 0.05 needs a mean difference of more than 9.0"
    )


def test_many_seeds_are_not_called_few(said):
    many = {"kerple": {128: [4.0, 4.1, 4.2, 4.3]}, "dape-kerple": {128: [3.0, 3.3, 3.1, 3.2]}}
    assert not any("very few" in line for line in said(many)["DAPE against its base"])


def test_one_seed_has_an_interval_over_windows(make_rows, with_windows):
    found = sections(summary(with_windows(make_rows(BETTER))))
    line, remark = found["DAPE against its base"]
    low, high = map(float, re.search(r"of one seed: ([\d.]+)% to ([\d.]+)% lower at 128;", line).groups())
    assert 9 < low < 10.0 < high < 11
    assert "95% interval over 200 windows" in line
    assert "it excludes zero at all 4 lengths." in line
    assert "nothing about other seeds" in remark
    assert "p =" not in line
    assert "One seed (0): nothing here tells how much perplexity would change with another one." in found["Caveats"]


def test_an_interval_around_zero_is_written_so(make_rows, with_windows):
    rows = with_windows(make_rows({"kerple": {128: 4.0}, "dape-kerple": {128: 3.999}}), noise=0.05)
    line = sections(summary(rows))["DAPE against its base"][0]
    assert re.search(r"[\d.]+% lower to [\d.]+% higher at 128; it excludes zero at no length\.", line)


def test_one_seed_without_windows(said):
    line = said(BETTER)["DAPE against its base"][0]
    assert "No test at 64 to 512: one seed, and windows do not pair up." in line


# Beyond the training length ------------------------------------------------------------------------------------------


def test_growth_is_sorted_into_rising_flat_and_falling(said):
    values = {
        "rope": {128: 4.0, 256: 12.0, 512: 48.0},
        "t5": {128: 4.0, 256: 4.2, 512: 4.4},
        "kerple": {128: 4.0, 256: 4.0, 512: 4.04},
        "sandwich": {128: 4.0, 256: 4.0, 512: 3.96},
        "alibi": {128: 4.0, 256: 4.6, 512: 4.0},
        "dape-alibi": {128: 4.0, 256: 3.8, 512: 3.6},
        "fire": {128: 4.0, 256: math.inf, 512: math.inf},
    }
    assert said(values)["Beyond the training length"] == [
        "Perplexity rises from 128 (training length) to 512: fire to infinity, rope x12, t5 +10.0%.",
        "Perplexity is flat (within 2%) from 128 (training length) to 512: "
        "kerple +1.0%, alibi +0.0% (+15.0% at 256), sandwich -1.0%.",
        "Perplexity falls from 128 (training length) to 512: dape-alibi -10.0%.",
    ]


def test_growth_of_incomplete_methods(said):
    values = {
        "a": {128: 4.0, 256: 8.0, 512: 16.0},
        "b": {128: 4.0, 256: 8.0},
        "c": {256: 8.0, 512: 4.0},
        "d": {128: math.nan, 512: 4.0},
        "e": {64: 4.0, 128: 4.0},
    }
    lines = said(values)["Beyond the training length"]
    assert lines[0] == "Perplexity rises from 128 (training length) to 512: a x4, b x2 at 256."
    assert lines[1:] == [
        "c: no seed was measured at all its lengths from 128 on, so nothing is said about it.",
        "d has no finite perplexity at 128.",
    ]


def test_growth_compares_the_same_seeds(said):
    """The second seed, far worse, has no value at 256; its absence must not look like an improvement."""
    lines = said({"a": {128: [4.0, 9.0], 256: [4.0]}})["Beyond the training length"]
    assert lines == ["Perplexity is flat (within 2%) from 128 (training length) to 256: a +0.0%."]


def test_nothing_beyond_the_training_length(said):
    lines = said({"a": {64: 5.0, 128: 4.0}})["Beyond the training length"]
    assert lines == ["No length beyond the training length 128 was measured."]


# Caveats -------------------------------------------------------------------------------------------------------------


def test_no_caveat_where_there_is_none(said):
    assert said(CLEAR)["Caveats"] == ["None that the rows show."]


def test_missing_runs(said):
    expected = {"methods": ["kerple", "dape-kerple", "fire"], "lengths": [128, 256], "seeds": range(2)}
    values = {"kerple": {128: [4.0, 4.1], 256: [4.0]}, "dape-kerple": {128: [3.9, 3.8], 256: [3.8, 3.7]}}
    caveats = said(values, expected)["Caveats"]
    assert "Missing: kerple, seed 1, at 256." in caveats
    assert "Missing: fire." in caveats
    assert "dape-kerple against kerple: one of them lacks seed 1 at some length, so it is not paired there." in caveats
    assert not any(line.startswith("Missing: dape-kerple") for line in caveats)


def test_other_data_is_left_out_and_said(make_rows):
    rows = [*make_rows(BETTER), *make_rows({"rope": {n: 1.0 for n in (64, 128)}}, data_hash="other")]
    found = sections(summary(rows))
    assert "rope-seed0 at 64 and 128: left out, data_hash other instead of abcdef0123456789." in found["Caveats"]
    assert found["Lowest perplexity"][0].startswith("dape-kerple has the lowest perplexity")


def test_other_steps_are_compared_with_a_warning(make_rows):
    rows = [*make_rows({"kerple": {128: 4.0}}), *make_rows({"rope": {128: 5.0}}, step=300)]
    caveats = sections(summary(rows))["Caveats"]
    assert any(line.endswith("300 steps: rope-seed0; 600 steps: kerple-seed0.") for line in caveats)


def test_few_windows(said):
    assert "Only 32 windows were scored at each length; 160 or more are advised." in said(BETTER, windows=32)["Caveats"]
    assert not any("windows were scored" in line for line in said(BETTER)["Caveats"])


def test_a_repeated_run_is_said(make_rows):
    rows = make_rows(BETTER)
    again = [replace(row, run="again") for row in rows if row.method == "kerple"]
    caveats = sections(summary([*rows, *again]))["Caveats"]
    assert any("kerple with seed 0 was run more than once (kerple-seed0, again)" in line for line in caveats)
