"""Every claim of an experiment, put to the paper's own numbers and to ours. No torch here."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dape.experiments.reproduce.catalogue import PaperExperiment
from dape.experiments.reproduce.claims import Claim, claims_of
from dape.experiments.reproduce.evidence import Evidence
from dape.experiments.reproduce.verdicts import (
    Below,
    BestOn,
    CountAbove,
    Faster,
    Heads,
    Judgement,
    RatioFalls,
    not_tested,
)
from dape.results.paper import PUBLISHED, Published, load
from dape.results.records import Row
from dape.results.statistics import latest

CHE_LENGTHS = range(41, 501)
"""Beyond training: over these a task is scored."""
DEPENDS = 0.01
"""Share of f's variance that must lie between samples before a head counts as depending on the input."""


@dataclass(frozen=True)
class Judged:
    claim: Claim
    paper: Judgement
    ours: Judgement

    def as_plain(self) -> dict[str, Any]:
        claim = self.claim
        about = {"id": claim.id, "statement": claim.statement, "source": claim.source}
        return {**about, "paper": asdict(self.paper), "ours": asdict(self.ours)}


def published(experiment: PaperExperiment) -> list[Published]:
    """The paper's numbers for it, tables first."""
    return [row for name in experiment.published for row in load(name)]


def judge_all(
    experiment: PaperExperiment, rows: Sequence[Row], *, heads: Sequence[Mapping[str, Any]] = ()
) -> list[Judged]:
    """``heads``: the summaries of bias maps."""
    printed = [row.as_row() for row in published(experiment)]
    return [
        Judged(claim, judge(claim, experiment, printed, []), judge(claim, experiment, rows, heads))
        for claim in claims_of(experiment)
    ]


def judge(
    claim: Claim, experiment: PaperExperiment, rows: Sequence[Row], heads: Sequence[Mapping[str, Any]]
) -> Judgement:
    match claim.check:
        case Below() as check:
            return check.judge(Evidence(rows, size=experiment.sizes[0]))
        case CountAbove() | BestOn() as check:
            return check.judge(che_scores(rows))
        case RatioFalls() | Faster() as check:
            return check.judge(milliseconds(rows))
        case Heads() as check:
            printed = not rows or rows[0].protocol == PUBLISHED
            return not_tested("shown in pictures only") if printed and not heads else check.judge(count_kinds(heads))


def che_scores(rows: Iterable[Row]) -> dict[tuple[str, str], float]:
    """By task and method, the mean over lengths beyond training and over seeds, at the rate that is best within it."""
    found: dict[tuple[str, str], dict[float, list[Row]]] = {}
    for row in latest(rows):
        if row.metric == "accuracy" and "task" in row.extra:
            found.setdefault((row.extra["task"], row.method), {}).setdefault(row.extra.get("lr", 0.0), []).append(row)
    return {key: _score(_best_rate(by_rate)) for key, by_rate in found.items()}


def _best_rate(by_rate: Mapping[float, list[Row]]) -> list[Row]:
    def familiar(rows: list[Row]) -> float:
        values = [row.value for row in rows if row.length not in CHE_LENGTHS]
        return statistics.fmean(values) if values else 0.0

    return max(by_rate.values(), key=familiar)


def _score(rows: Sequence[Row]) -> float:
    """The paper prints the mean, which has no length."""
    return statistics.fmean(row.value for row in rows if row.length in CHE_LENGTHS or row.protocol == PUBLISHED)


def milliseconds(rows: Iterable[Row]) -> dict[tuple[str, str], float]:
    """By model size and method; of ours those of a whole training step, at the greatest depth that is known."""
    steps = [r for r in rows if r.metric == "milliseconds" and r.extra.get("pass", "step") == "step"]
    deepest_last = sorted(steps, key=lambda row: row.extra.get("layers", 0))
    return {(row.extra["model"], row.method): row.value for row in deepest_last}


def count_kinds(heads: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for head in heads:
        counts[head["kind"]] = counts.get(head["kind"], 0) + 1
        kind = "depending on the input" if head["input_dependence"] > DEPENDS else "depending on position alone"
        counts[kind] = counts.get(kind, 0) + 1
    return counts
