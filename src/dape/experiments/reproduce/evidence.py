"""Comparisons of two methods: from our rows with tests over seeds, from the paper's printed means. No torch here.

Lengths are multiples of the training length, so that a claim about 512 and 8192 tokens applies to a model that was
trained at 128 and tested at 2048 tokens.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dape.results.paper import PUBLISHED
from dape.results.records import Row
from dape.results.statistics import Comparison, Summary, arrange, compare_at, latest, log_summary, welch


@dataclass(frozen=True, order=True)
class Panel:
    """Runs that differ only in the encoding."""

    size: str
    train_length: int
    """The paper's, of which ours may be a fraction."""


@dataclass(frozen=True)
class Side:
    """A method or variant, at a model size. Without a size, the panel's is meant."""

    label: str
    size: str = ""


@dataclass(frozen=True)
class Cell:
    """One comparison, with its panel and length."""

    panel: Panel
    ratio: int
    """Length of the input divided by the training length."""
    found: Comparison


class Evidence:
    def __init__(self, rows: Iterable[Row], *, size: str) -> None:
        """``size`` is the model size of rows that do not name it."""
        self._size = size
        self._rows = [row for row in latest_of(rows) if row.metric == "perplexity" and row.train_length]

    @cached_property
    def _by_panel(self) -> dict[Panel, list[Row]]:
        found: dict[Panel, list[Row]] = {}
        for row in self._rows:
            length = row.extra.get("paper_train_length", row.train_length)
            panel = Panel(row.extra.get("model", self._size), length)
            found.setdefault(panel, []).append(replace(row, method=row.label, variant=""))
        return dict(sorted(found.items()))

    @property
    def panels(self) -> list[Panel]:
        return list(self._by_panel)

    def ratios(self, panel: Panel) -> list[int]:
        return sorted({row.length // row.train_length for row in self._by_panel.get(panel, [])})

    @property
    def lacking(self) -> str:
        """Why a comparison is missing."""
        return "the paper prints no numbers" if _is_printed(self._rows) else "not measured"

    def compare(self, panel: Panel, low: Side, high: Side, ratio: int) -> Cell | None:
        """The comparison, or None if one of the two was not measured."""
        ours, theirs = (self._at(panel, side, ratio) for side in (low, high))
        if not ours or not theirs:
            return None
        if _is_printed(ours):
            return Cell(panel, ratio, _from_print(ours[0], theirs[0]))
        found = compare_at(arrange([*ours, *theirs]), ours[0].method, theirs[0].method, ours[0].length)
        return Cell(panel, ratio, found)

    def _at(self, panel: Panel, side: Side, ratio: int) -> list[Row]:
        """The rows of a side, with its size in the name: both sides may be the same method."""
        rows = self._by_panel.get(replace(panel, size=side.size or panel.size), [])
        name = f"{side.label} {side.size}".strip()
        chosen = [row for row in rows if row.method == side.label and row.length == ratio * row.train_length]
        return [replace(row, method=name) for row in chosen]


def latest_of(rows: Iterable[Row]) -> list[Row]:
    """The rows without repeats. Of ours the last counts. The paper may print a number twice, in a table and in the
    text: the first counts, and tables come first."""
    rows = list(rows)
    printed: dict[tuple[object, ...], Row] = {}
    for row in rows:
        if row.protocol == PUBLISHED:
            about = (row.extra.get(name) for name in ("model", "dataset"))
            printed.setdefault((row.label, row.train_length, row.length, row.metric, *about), row)
    return [*latest(row for row in rows if row.protocol != PUBLISHED), *printed.values()]


def _is_printed(rows: Sequence[Row]) -> bool:
    return bool(rows) and rows[0].protocol == PUBLISHED


def _from_print(ours: Row, theirs: Row) -> Comparison:
    """Welch's test if means, deviations and counts are printed; otherwise only the difference."""
    a, b = (_summary(row) for row in (ours, theirs))
    plain = Comparison(
        method=ours.method,
        base=theirs.method,
        length=ours.length,
        n=min(_seeds(ours), _seeds(theirs)),
        gap_nll=math.log(ours.value) - math.log(theirs.value),
        note="no test possible: no deviations are printed",
    )
    tested = None if a is None or b is None else welch(log_summary(a), log_summary(b))
    if tested is None:
        return plain
    return replace(plain, test="welch", p=tested.p, ci=(tested.low, tested.high), note="")


def _seeds(row: Row) -> int:
    return row.extra.get("n_seeds", 1)


def _summary(row: Row) -> Summary | None:
    std = row.extra.get("std")
    return None if std is None else Summary(row.value, std, _seeds(row))
