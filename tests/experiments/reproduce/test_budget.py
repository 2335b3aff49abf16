"""What fits into so many hours."""

from dataclasses import replace
from pathlib import Path

import pytest

from dape.errors import UsageError
from dape.experiments.executor import START_SECONDS
from dape.experiments.reproduce.budget import Speed, fit, kind_of
from dape.experiments.reproduce.catalogue import EXPERIMENTS
from dape.experiments.reproduce.plan import Reproduction
from dape.experiments.reproduce.scales import SCALES


def plan(seeds: int = 5, scale: str = "night") -> Reproduction:
    experiment = EXPERIMENTS["bias-ablation"]
    given = {"data": "", "data_name": "", "data_hash": ""}
    return Reproduction(out=Path("out"), experiment=experiment, scale=SCALES[scale], seeds=seeds, **given)


def speeds(seconds_of_a_run: float) -> dict:
    """A run of 4000 steps and its tests take so long; a fifth of it is testing."""
    each = Speed(step=0.8 * seconds_of_a_run / 4000, test=0.2 * seconds_of_a_run - START_SECONDS)
    return {kind_of(run): each for run in plan().runs()}


@pytest.mark.parametrize(
    ("hours", "jobs", "seeds", "steps", "cut"),
    [
        (15, 1, 5, 4000, []),  # 3 arms x 5 seeds of an hour
        (7.5, 2, 5, 4000, []),
        (14.9, 1, 4, 4000, ["4 of 5 seeds"]),
        (9, 1, 3, 4000, ["3 of 5 seeds"]),
        (5.4, 1, 3, 2000, ["3 of 5 seeds", "2000 of 4000 steps"]),  # 0.2 + 0.4 hours a run
        (2.4, 1, 2, 1000, ["2 of 5 seeds", "1000 of 4000 steps"]),
        (0.9, 1, 1, 500, ["1 of 5 seeds", "500 of 4000 steps"]),
    ],
)
def test_cuts(hours, jobs, seeds, steps, cut):
    fitted, words = fit(plan(), speeds(3600.0), hours, jobs)
    assert (fitted.seeds, fitted.scale.steps, words) == (seeds, steps, cut)


def test_what_is_planned_takes_no_longer():
    for hours in (0.7, 1.3, 2.9, 6.1, 12.0):
        fitted, _ = fit(plan(), speeds(3600.0), hours, 2)
        one = speeds(3600.0)[kind_of(fitted.runs()[0])]
        seconds = len(fitted.runs()) * (fitted.scale.steps * one.step + one.test + START_SECONDS) / 2
        assert seconds <= hours * 3600 * 1.001


def test_too_little():
    with pytest.raises(UsageError, match=r"`budget` 0.1: too little.*one seed with 80 of 4000 steps needs 0.6"):
        fit(plan(), speeds(3600.0), 0.1, 1)


def test_scales_without_steps():
    with pytest.raises(UsageError, match="scale paper takes its number of steps from the paper"):
        fit(replace(plan(), scale=SCALES["paper"]), {}, 1.0, 1)
