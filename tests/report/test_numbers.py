import math

import pytest

from dape.results.numbers import as_text, deviation, p_text, percent, runs_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.70049, "3.700"),
        (9.9996, "10.00"),
        (47.123, "47.12"),
        (999.96, "1000"),
        (265.4545, "265.5"),
        (12345.6, "12346"),
        (1.23e8, "1.2e8"),
        (4.56e123, "4.6e123"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_perplexity_has_four_digits(value, text):
    assert as_text(value) == text


def test_accuracy_is_in_percent():
    assert (as_text(0.1234, "accuracy"), deviation(0.01, 0.5, "accuracy")) == ("12.3%", "1.0%")


def test_deviation_has_the_places_of_its_mean():
    assert [deviation(1.23456, mean) for mean in (4.0, 40.0, 400.0, 4000.0)] == ["1.235", "1.23", "1.2", "1"]


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.896, "10.4%"),
        (1.104, "10.4%"),
        (12.5, "1150%"),
        (1.0004, "0.04%"),
        (1 + 1e-7, "less than 0.001%"),
        (math.inf, "more than 100000%"),
        (math.nan, "an unknown amount"),
    ],
)
def test_percent(ratio, text):
    assert percent(ratio) == text


def test_p():
    assert [p_text(p) for p in (0.5, 0.01234, 0.0001, 0.00001)] == ["p = 0.5", "p = 0.012", "p = 0.0001", "p < 0.0001"]


@pytest.mark.parametrize(
    ("lengths", "text"),
    [
        ([64], "64"),
        ([64, 128], "64 and 128"),
        ([64, 128, 256], "64 to 256"),
        ([64, 256], "64 and 256"),
        ([1024, 64, 128, 256], "64 to 256 and 1024"),
        ([64, 256, 512, 1024], "64 and 256 to 1024"),
    ],
)
def test_runs_of_lengths(lengths, text):
    assert runs_of(lengths, [64, 128, 256, 512, 1024]) == text
