"""The Chomsky-hierarchy benchmark: tasks by methods as a map and a table, and accuracy by length."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dape.evaluation.chomsky_scores import Cell as Score
from dape.evaluation.chomsky_scores import summarise_all
from dape.report.chomsky import LEARNED
from dape.report.page.blocks import (
    NOTHING,
    Block,
    Cell,
    Chart,
    Table,
    finite,
    in_order,
    series_of,
    sortable,
    spread_cell,
    text_cells,
)
from dape.report.page.panels import Panel
from dape.results.numbers import as_text
from dape.results.paper import Published
from dape.results.statistics import in_words, spread
from dape.tasks.chomsky.catalogue import TASKS
from dape.tasks.chomsky.config import CheConfig

MOST_LENGTHS = 64
"""On a curve: more cannot be told apart on a screen, and make the page large."""

FEW_TASKS = 4
"""Each of so many gets a sentence of its own."""

Paper = Mapping[tuple[str, str], float]
"""Accuracy by task and method."""


def task_block(panel: Panel, published: Sequence[Published]) -> Block:
    rows = [row for row in panel.rows if row.metric in ("accuracy", "nll") and "lr" in row.extra]
    tasks = _tasks({str(row.extra["task"]) for row in rows})
    labels = in_order(row.method for row in rows)
    config, cells = summarise_all(rows, panel.train_length)
    if not config.scored_lengths or not config.familiar_lengths:
        return Block(_titled(panel), caveats=["Lengths within and beyond training are needed, and there are not both."])
    scores = sorted(cells, key=lambda cell: (tasks.index(cell.task), labels.index(cell.method)))
    paper = {(row.dataset, row.method): row.value / 100 for row in published if row.metric == "accuracy_percent"}
    return Block(
        title=_titled(panel),
        words=_best_words(scores),
        series=series_of(labels),
        charts=[_map(scores, paper, labels), *(_lengths(task, scores, panel.train_length) for task in tasks)],
        tables=[_table(scores, paper, config)],
        caveats=[*_unfinished(scores, tasks, labels), *_thinned(config)],
    )


def _titled(panel: Panel) -> str:
    title = "Chomsky-hierarchy tasks: accuracy beyond the training length"
    return f"{title}: {panel.among}" if panel.among else title


def _tasks(found: set[str]) -> list[str]:
    """In the paper's order, then any other."""
    return [task for task in TASKS if task in found] + sorted(found - set(TASKS))


def title_of(task: str) -> str:
    return TASKS[task].title if task in TASKS else task


def chance_of(task: str) -> float | None:
    return TASKS[task].chance if task in TASKS else None


def _best_words(scores: Sequence[Score]) -> list[str]:
    """Per task the best mean, and whether anything was learned at all; of many tasks, who is best on how many."""
    words = []
    tasks = {score.task for score in scores}
    if len(tasks) > FEW_TASKS:
        best = _best(scores)
        won = Counter(score.method for score in scores if score.mean == best.get(score.task))
        told = in_words([f"{method} on {count}" for method, count in won.most_common()]) or "nobody"
        guessed = f"; none is above guessing on {len(tasks) - len(best)}" if len(best) < len(tasks) else ""
        return [f"Best beyond the training length, of {len(tasks)} tasks: {told}{guessed}.", *_not_learned(scores)]
    for task in dict.fromkeys(score.task for score in scores):
        of_task = [score for score in scores if score.task == task and math.isfinite(score.mean)]
        if not of_task:
            continue
        best = max(of_task, key=lambda score: score.mean)
        familiar, chance = max(score.familiar for score in of_task), chance_of(task)
        guess = f", guessing gives {100 * chance:.0f}%" if chance is not None else ""
        first = f"{title_of(task)}: best beyond the training length is {best.method} with "
        if not _above_chance(best):
            first = f"{title_of(task)}: no method is above guessing beyond the training length, the highest has "
        words.append(
            f"{first}{as_text(best.mean, 'accuracy')} (in distribution the best has {as_text(familiar, 'accuracy')}"
            f"{guess})."
        )
    return words


def _not_learned(scores: Sequence[Score]) -> list[str]:
    poor = []
    for task in dict.fromkeys(score.task for score in scores):
        chance, familiar = chance_of(task), max(score.familiar for score in scores if score.task == task)
        if chance is not None and familiar - chance < LEARNED * (1 - chance):
            poor.append(title_of(task))
    return [f"Hardly learned by any method, even in distribution: {in_words(poor)}."] if poor else []


def _map(scores: Sequence[Score], paper: Paper, labels: Sequence[str]) -> Chart:
    tasks = list(dict.fromkeys(score.task for score in scores))
    ours = {(score.task, score.method): score for score in scores}
    cells = []
    columns = [*labels, *_only_in_paper(paper, labels, tasks)]
    for task in tasks:
        for label in columns:
            score, published = ours.get((task, label)), paper.get((task, label))
            if score is None and published is None:
                continue
            cells.append({"r": title_of(task), "c": label, **_both(task, score.mean if score else None, published)})
    label = (
        "Heat map, tasks by methods: mean accuracy beyond the training length. The table below has the same numbers."
    )
    return Chart(
        "map", label, {"cells": cells, "columns": columns, "paper": any(cell["p"] is not None for cell in cells)}
    )


def _only_in_paper(paper: Paper, labels: Sequence[str], tasks: Sequence[str]) -> list[str]:
    return in_order(method for task, method in paper if task in tasks and method not in labels)


def _both(task: str, ours: float | None, published: float | None) -> dict[str, Any]:
    """Numbers in percent, and where they lie between guessing (0) and perfect (1)."""
    chance = chance_of(task) or 0.0

    def shade(value: float | None) -> float | None:
        return None if finite(value) is None or value is None else max(0.0, (value - chance) / (1 - chance))

    def text(value: float | None) -> str:
        return "" if value is None else f"{100 * value:.1f}" if math.isfinite(value) else str(value)

    return {"v": shade(ours), "p": shade(published), "text": text(ours), "paper": text(published)}


def _lengths(task: str, scores: Sequence[Score], train_length: int) -> Chart:
    of_task = [score for score in scores if score.task == task]
    points = [
        {"s": score.method, "x": n, "y": None if math.isnan(value) else 100 * value, "text": as_text(value, "accuracy")}
        for score in of_task
        for n, value in _thin(list(score.curve.items()))
    ]
    chance = chance_of(task)
    data = {"ours": points, "train": train_length, "chance": None if chance is None else 100 * chance}
    return Chart(
        "lengths",
        f"{title_of(task)}: accuracy by length of the input",
        data,
        title_of(task),
        "Accuracy by length of the input",
    )


def _thin(curve: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    if len(curve) <= MOST_LENGTHS:
        return curve
    kept = {round(place * (len(curve) - 1) / (MOST_LENGTHS - 1)) for place in range(MOST_LENGTHS)}
    return [point for place, point in enumerate(curve) if place in kept]


def _thinned(config: CheConfig) -> list[str]:
    count = len(config.lengths)
    return [f"Curves show {MOST_LENGTHS} of {count} lengths; scores are over all."] if count > MOST_LENGTHS else []


def _table(scores: Sequence[Score], paper: Paper, config: CheConfig) -> Table:
    best = _best(scores)
    lines = []
    for score in scores:
        found, published = spread(list(score.scores.values())), paper.get((score.task, score.method))
        lines.append(
            [
                *text_cells(title_of(score.task), score.method),
                spread_cell(score.scores, found, "accuracy", best=score.mean == best.get(score.task)),
                Cell(str(found.n), found.n),
                _percent(score.best),
                _percent(score.familiar),
                Cell(f"{score.lr:g}", score.lr),
                _percent(published),
                _percent(chance_of(score.task)),
            ]
        )
    trained = config.train_length
    headers = ["task", "method", "accuracy", "seeds", "best seed", f"1 to {trained}", "rate", "paper", "guessing"]
    notes = [
        f"Accuracy: mean over seeds of the mean over {len(config.scored_lengths)} lengths beyond {trained}, up to "
        f"{max(config.lengths)}. The learning rate was chosen by accuracy at lengths up to {trained}.",
        "The paper does not say whether its numbers are means or maxima over seeds.",
    ]
    if max((len(score.scores) for score in scores), default=0) < 2:
        notes.append("One seed: no test possible.")
    return Table("Accuracy by task and method", headers, lines, words=2, notes=notes)


def _best(scores: Sequence[Score]) -> dict[str, float]:
    """By task, where there is something to be better than, and what is better than guessing."""
    of_task: dict[str, list[Score]] = {}
    for score in scores:
        of_task.setdefault(score.task, []).append(score)
    highest = {task: max(of, key=_mean) for task, of in of_task.items() if len(of) > 1}
    return {task: score.mean for task, score in highest.items() if _above_chance(score)}


def _mean(score: Score) -> float:
    return score.mean if math.isfinite(score.mean) else -math.inf


def _above_chance(score: Score) -> bool:
    chance = chance_of(score.task)
    return chance is None or _mean(score) > chance


def _percent(value: float | None) -> Cell:
    return NOTHING if value is None else Cell(as_text(value, "accuracy"), sortable(value))


def _unfinished(scores: Sequence[Score], tasks: Sequence[str], labels: Sequence[str]) -> list[str]:
    there = {(score.task, score.method) for score in scores}
    missing = [f"{label} on {title_of(task)}" for task in tasks for label in labels if (task, label) not in there]
    if not missing:
        return []
    more = f" and {len(missing) - 6} more" if len(missing) > 7 else ""
    told = in_words(missing) if not more else ", ".join(missing[:6]) + more
    return [f"Not measured, or not at every length: {told}."]
