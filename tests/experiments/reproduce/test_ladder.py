"""The registered tests on made-up rows whose answers are known."""

import math

import pytest

from dape.experiments.reproduce.ladder import Ladder, Rung, as_markdown, registered
from dape.results.records import Row

FULL = 8_192_000


def rows(data="stdlib", size="125m", tokens=FULL, seeds=5, gap=0.02, noise=0.001, static=0.1, ratios=(1, 16)):
    """f(B) at 20, f(QK, B) lower by the gap with a little of each seed's own, the static bias higher."""
    made = []
    for seed in range(seeds):
        own = noise * (seed - (seeds - 1) / 2)
        levels = {"bias_only": 0.0, "concat_residual": -gap - own, "": static + own}
        for variant, level in levels.items():
            common = {
                "run": f"{data}-{size}-{tokens}-{variant}-{seed}", "method": "dape-kerple" if variant else "kerple",
                "variant": variant, "seed": seed, "train_length": 128, "scored_tokens": 64, "data_hash": data,
                "protocol": "last_k",
                "extra": {"experiment": "bias-ablation", "data": data, "model": size, "tokens": tokens},
            }  # fmt: skip
            values = [(128 * ratio, "perplexity", 20 * math.exp(level)) for ratio in ratios]
            for length, metric, value in [*values, (128, "in_context_gain", 0.5)]:
                made.append(Row(length=length, metric=metric, value=value, **common))
    return made


def verdicts(*groups) -> dict[str, str]:
    return {found.id: found.verdict for found in registered(Ladder([row for group in groups for row in group]))}


def test_content_helps():
    found = {each.id: each for each in registered(Ladder(rows()))}
    one = found["E1/1x"]
    assert (one.n, one.verdict) == (5, "yes") and one.mean == pytest.approx(0.02)
    assert one.low < 0.02 < one.high and (one.p_holm or 0) > (one.p or 0) > 0
    assert found["E2/1x"].verdict == "incomplete" and found["E2/1x"].n == 0
    assert found["E3/stdlib"].verdict == "yes"


@pytest.mark.parametrize(
    ("gap", "noise", "verdict"),
    [
        (0.02, 0.001, "yes"),
        (0.0, 0.0005, "no"),
        (-0.02, 0.001, "no"),
        (0.01, 0.02, "undecided"),
        (0.0, 0.01, "undecided"),
    ],
)
def test_verdicts(gap, noise, verdict):
    assert verdicts(rows(gap=gap, noise=noise))["E1/16x"] == verdict


def test_fewer_seeds_have_no_verdict():
    assert verdicts(rows(seeds=4))["E1/1x"] == "incomplete"


def test_growth_with_training():
    growing = ((400_000, 0.0, 0.001), (2_000_000, 0.01, 0.002), (FULL, 0.02, 0.003))
    rungs = [rows(tokens=tokens, gap=gap, noise=noise) for tokens, gap, noise in growing]
    found = {each.id: each for each in registered(Ladder([row for rung in rungs for row in rung]))}
    assert found["E4"].verdict == "yes" and 0.003 < found["E4"].mean < 0.006
    shrinking = [rows(tokens=tokens, gap=0.02 - gap, noise=noise) for tokens, gap, noise in growing]
    assert verdicts(*shrinking)["E4"] == "no"
    assert verdicts(*rungs[:2])["E4"] == "incomplete"


def test_slopes_by_hand():
    ladder = Ladder(
        [row for tokens, gap in ((1, 0.0), (2, 0.1), (8, 0.3)) for row in rows(tokens=tokens, gap=gap, noise=0)]
    )
    assert ladder.slopes(ladder.rungs, 16) == pytest.approx([0.1] * 5)


def test_size():
    assert verdicts(rows(), rows(size="350m", seeds=3, gap=0.05, noise=0.002))["E5"] == "yes"


def test_tables():
    text = as_markdown(Ladder(rows()))
    assert "| stdlib | 125m | 8.2M | 5 | 0.50 |" in text and "+2.02%" in text
    assert "| E1/1x | content helps on stdlib at 1x | 5 of 5 |" in text and "| yes |" in text
    assert Rung("stdlib", "125m", FULL) in Ladder(rows()).in_context
