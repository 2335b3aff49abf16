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
"""Points of a curve at most. More cannot be told apart on a screen, and make the page large."""

FEW_TASKS = 4
"""Up to so many tasks have a sentence each."""

Paper = Mapping[tuple[str, str], float]
"""Accuracy by task and method."""


def task_block(panel: Panel, published: Sequence[Published]) -> Block:
    title = panel.titled("Chomsky-hierarchy tasks: accuracy beyond the training length")
    rows = [row for row in panel.rows if row.metric in ("accuracy", "nll") and "lr" in row.extra]
    tasks = _tasks({str(row.extra["task"]) for row in rows})
    labels = in_order(row.method for row in rows)
    config, cells = summarise_all(rows, panel.train_length)
    if not config.scored_lengths or not config.familiar_lengths:
        return Block(title, caveats=["A score needs lengths both within and beyond those in training."])
    scores = sorted(cells, key=lambda cell: (tasks.index(cell.task), labels.index(cell.method)))
    paper = {(row.dataset, row.method): row.value / 100 for row in published if row.metric == "accuracy_percent"}
    return Block(
        title=title,
        words=_best_words(scores),
        series=series_of(labels),
        charts=[_map(scores, paper, labels), *(_lengths(task, scores, panel.train_length) for task in tasks)],
        tables=[_table(scores, paper, config)],
        caveats=[*_unfinished(scores, tasks, labels), *_thinned(config)],
    )


def _tasks(found: set[str]) -> list[str]:
    """Tasks in the paper's order, then others."""
    return [task for task in TASKS if task in found] + sorted(found - set(TASKS))


def title_of(task: str) -> str:
    return TASKS[task].title if task in TASKS else task


def chance_of(task: str) -> float | None:
    return TASKS[task].chance if task in TASKS else None


def _best_words(scores: Sequence[Score]) -> list[str]:
    """The best method of each task; of many tasks, on how many each method is best."""
    words = []
    tasks = list(dict.fromkeys(score.task for score in scores))
    if len(tasks) > FEW_TASKS:
        best = _best(scores)
        won = Counter(score.method for score in scores if score.mean == best.get(score.task))
        winners = in_words([f"{method} on {count}" for method, count in won.most_common()]) or "nobody"
        guessed = f"; none is above guessing on {len(tasks) - len(best)}" if len(best) < len(tasks) else ""
        return [f"Best beyond the training length, of {len(tasks)} tasks: {winners}{guessed}.", *_not_learned(scores)]
    for task in tasks:
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
    ours = {(score.task, score.method): score.mean for score in scores}
    columns = [*labels, *_only_in_paper(paper, labels, tasks)]
    cells = [
        {"r": title_of(task), "c": label, **_both(task, ours.get((task, label)), paper.get((task, label)))}
        for task in tasks
        for label in columns
        if (task, label) in ours or (task, label) in paper
    ]
    label = (
        "Heat map, tasks by methods: mean accuracy beyond the training length. The table below has the same numbers."
    )
    data = {"cells": cells, "columns": columns, "paper": any(cell["p"] is not None for cell in cells)}
    return Chart("map", label, data)


def _only_in_paper(paper: Paper, labels: Sequence[str], tasks: Sequence[str]) -> list[str]:
    return in_order(method for task, method in paper if task in tasks and method not in labels)


def _both(task: str, ours: float | None, published: float | None) -> dict[str, Any]:
    """Our number and the paper's: in percent, and as a shade between guessing (0) and perfect (1)."""
    chance = chance_of(task) or 0.0

    def shade(value: float | None) -> float | None:
        return None if (known := finite(value)) is None else max(0.0, (known - chance) / (1 - chance))

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
    chance, title, group = chance_of(task), title_of(task), "Accuracy by length of the input"
    data = {"ours": points, "train": train_length, "chance": None if chance is None else 100 * chance}
    return Chart("lengths", f"{title}: accuracy by length of the input", data, title, group)


def _thin(curve: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    if len(curve) <= MOST_LENGTHS:
        return curve
    return [curve[round(n * (len(curve) - 1) / (MOST_LENGTHS - 1))] for n in range(MOST_LENGTHS)]


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
    """The highest mean of each task that several methods have and where it is above guessing."""
    by_task: dict[str, list[Score]] = {}
    for score in scores:
        by_task.setdefault(score.task, []).append(score)
    highest = {task: max(of_task, key=_mean) for task, of_task in by_task.items() if len(of_task) > 1}
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
    names = in_words(missing) if len(missing) <= 7 else f"{', '.join(missing[:6])} and {len(missing) - 6} more"
    return [f"Not measured, or not at every length: {names}."]
