"""What rows say of one thing against another: ours with tests over seeds, the paper's from printed means. No torch.

Lengths are multiples of the training length here, so that a claim about 512 and 8192 tokens can be put to a model that
was trained at 128 and tested at 2048.
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
    """Runs that differ in the encoding only."""

    size: str
    train_length: int
    """Of the paper."""


@dataclass(frozen=True)
class Side:
    """A method, or a variant of one, at a model size; without a size, at that of the panel in question."""

    label: str
    size: str = ""


@dataclass(frozen=True)
class Cell:
    """One comparison, and where it was made."""

    panel: Panel
    ratio: int
    """Length of the input / training length."""
    found: Comparison


class Evidence:
    def __init__(self, rows: Iterable[Row], *, size: str) -> None:
        """``size``: the model of rows that do not say."""
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
        """What to say of things without numbers."""
        return "the paper prints no numbers" if _is_printed(self._rows) else "not measured"

    def compare(self, panel: Panel, low: Side, high: Side, ratio: int) -> Cell | None:
        """None where one of the two was not measured."""
        ours, theirs = (self._at(panel, side, ratio) for side in (low, high))
        if not ours or not theirs:
            return None
        if _is_printed(ours):
            return Cell(panel, ratio, _from_print(ours[0], theirs[0]))
        found = compare_at(arrange([*ours, *theirs]), ours[0].method, theirs[0].method, ours[0].length)
        return Cell(panel, ratio, found)

    def _at(self, panel: Panel, side: Side, ratio: int) -> list[Row]:
        """With the size in the name where it is another than the panel's: both may be the same method."""
        rows = self._by_panel.get(replace(panel, size=side.size or panel.size), [])
        name = f"{side.label} {side.size}".strip()
        chosen = [row for row in rows if row.method == side.label and row.length == ratio * row.train_length]
        return [replace(row, method=name) for row in chosen]


def latest_of(rows: Iterable[Row]) -> list[Row]:
    """The paper may print one number twice (a table and the text): the first counts, and tables come first. Of ours the
    last."""
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
    """Welch's test where means, deviations and counts are printed; else the difference alone."""
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
