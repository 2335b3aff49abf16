"""Verdicts on the claims of an experiment, from the paper's numbers and from ours. No torch here."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dape.evaluation.chomsky_scores import summarise_all
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

DEPENDS = 0.01
"""A head depends on the input if more than this fraction of f's variance is between samples."""


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
    """The paper's numbers, tables first."""
    return [row for name in experiment.published for row in load(name)]


def judge_all(
    experiment: PaperExperiment, rows: Sequence[Row], *, heads: Sequence[Mapping[str, Any]] = ()
) -> list[Judged]:
    """Judge every claim. ``heads`` are the summaries of bias maps."""
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
    """Scores by task and method: those that the paper prints, or ours."""
    of_tasks = [row for row in rows if row.metric in ("accuracy", "nll") and "task" in row.extra]
    printed = {(row.extra["task"], row.method): row.value for row in of_tasks if row.protocol == PUBLISHED}
    measured = [row for row in of_tasks if "lr" in row.extra]
    if not measured:
        return printed
    _, cells = summarise_all(measured, measured[0].train_length)
    return printed | {(cell.task, cell.method): cell.mean for cell in cells}


def milliseconds(rows: Iterable[Row]) -> dict[tuple[str, str], float]:
    """Times by model size and method. Ours are those of a whole training step at the greatest known depth."""
    steps = [r for r in rows if r.metric == "milliseconds" and r.extra.get("pass", "step") == "step"]
    deepest_last = sorted(steps, key=lambda row: row.extra.get("layers", 0))
    return {(row.extra["model"], row.method): row.value for row in deepest_last}


def count_kinds(heads: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The number of heads of each kind, by the shape of f and by its dependence on the input."""
    counts = Counter(head["kind"] for head in heads)
    for head in heads:
        counts["depending on " + ("the input" if head["input_dependence"] > DEPENDS else "position alone")] += 1
    return counts
