"""The parts of a section: blocks with tables and charts, before they become HTML."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dape.positional.catalogue import ENTRIES
from dape.positional.names import parse
from dape.report.looks import COLOURS, DASH_DOTTED, DASHED, DOTTED, LONG_DASHED, looks
from dape.report.page.section import Claim, Mode
from dape.results.numbers import as_text, deviation
from dape.results.statistics import Spread

# Lighter variants of the colours of looks.py: on a dark page they have the contrast that those have on a white one.
DARK: dict[str, str] = dict(
    zip(
        COLOURS,
        ("#52AEE8", "#FF8B52", "#2FCB9D", "#E38FC3", "#E8E8E8", "#8AD0FA", "#F3B63F", "#A6A6A6", "#CF9A6C"),
        strict=True,
    )
)
SHAPES = {
    "o": "circle",
    "s": "square",
    "D": "diamond",
    "P": "cross",
    "v": "triangle-down",
    "h": "circle",
    "d": "diamond",
    "<": "triangle-left",
    ">": "triangle-right",
}
"""matplotlib's marker -> Vega's shape."""
DASHES = {DASHED: [7, 4], DASH_DOTTED: [10, 3, 2, 3], DOTTED: [2, 3], LONG_DASHED: [14, 4]}


@dataclass(frozen=True)
class Cell:
    text: str
    sort: float | str | None = None
    """Sort key. Cells with None (not measured, not a number) go last."""
    spread: str = ""
    """Written small behind the text."""
    mark: str = ""
    """Written raised behind the text."""
    best: bool = False
    title: str = ""
    """Shown when the pointer is over the cell."""


@dataclass(frozen=True)
class Table:
    name: str
    headers: Sequence[str]
    lines: Sequence[Sequence[Cell]]
    words: int = 1
    """Number of columns of words, which come first; the others are numbers, aligned right."""
    notes: Sequence[str] = ()
    """Sentences below the table."""
    swatches: bool = False
    """Whether the first column names series of the block's charts, whose looks are then shown."""


@dataclass(frozen=True)
class Chart:
    kind: str
    """Which function of charts.js draws it: a key of DRAW."""
    label: str
    """Description for screen readers."""
    data: Mapping[str, Any]
    title: str = ""
    group: str = ""
    """Small charts of the same group stand together under this heading."""


@dataclass(frozen=True)
class Block:
    """A part of a section: controls, charts and tables of the same rows."""

    title: str
    words: Sequence[str] = ()
    """Sentences that say what charts and tables show."""
    series: Sequence[Mapping[str, Any]] = ()
    """Name and look of each line, for a legend that switches lines on and off."""
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    paper: Sequence[Table] = ()
    """The paper's numbers. If there are some, a switch selects ours, the paper's or both."""
    details: Sequence[tuple[str, Table]] = ()
    """Summaries, each with a table that is hidden until the reader opens it."""
    caveats: Sequence[str] = ()
    mode: Mode = "both"
    """Whose numbers are shown first."""


@dataclass(frozen=True)
class Fact:
    name: str
    values: Sequence[str]


@dataclass(frozen=True)
class Claims:
    lines: Sequence[Claim]
    counts: Mapping[str, int]
    """Number of claims by our verdict."""


@dataclass(frozen=True)
class View:
    """A section as the template needs it."""

    id: str
    title: str
    about: Sequence[str]
    source: str
    badges: Sequence[str]
    warnings: Sequence[str]
    reduced: Sequence[str]
    claims: Claims | None
    blocks: Sequence[Block]
    explorer: Mapping[str, Any] | None
    facts: Sequence[Fact]
    headline: str = ""
    """One sentence for the list of contents."""


# Series --------------------------------------------------------------------------------------------------------------


def series_of(labels: Iterable[str]) -> list[dict[str, Any]]:
    """Name and look of each line."""
    styles = looks(labels)
    return [
        {
            "name": label,
            "light": look.colour,
            "dark": DARK[look.colour],
            "dash": DASHES.get(look.stroke, [1, 0]),
            "shape": SHAPES[look.marker],
            "wide": look.adapted,
        }
        for label, look in styles.items()
    ]


def in_order(labels: Iterable[str]) -> list[str]:
    """Labels in the order of the catalogue, each encoding followed by DAPE on it. Rows are in the order runs ended."""
    order = list(ENTRIES)

    def key(label: str) -> tuple[int, str, bool, str]:
        name = parse(label.partition(" (")[0])
        known = order.index(name.base) if name.base in order else len(order)
        return known, name.base, bool(name.wrapper), label

    return sorted(dict.fromkeys(labels), key=key)


# Numbers -------------------------------------------------------------------------------------------------------------


def finite(value: float | None) -> float | None:
    """None for infinity and NaN, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None


def sortable(value: float) -> float | None:
    """A sort key that JSON has: infinity becomes a huge number, NaN None."""
    return None if math.isnan(value) else max(min(value, 1e300), -1e300)


def spread_cell(values: Mapping[int, float], found: Spread, metric: str, **more: Any) -> Cell:
    """Mean and deviation over seeds, or how many seeds are not finite. The title has the value of each seed."""
    std = "" if found.std is None else f"± {deviation(found.std, found.mean, metric)}"
    infinite = sum(not math.isfinite(value) for value in values.values())
    if infinite and found.n > 1:
        std = f"{infinite} of {found.n} seeds not finite"
    by_seed = ", ".join(f"seed {seed}: {as_text(value, metric)}" for seed, value in sorted(values.items()))
    title = "\n".join(filter(None, [by_seed, more.pop("title", "")]))
    return Cell(as_text(found.mean, metric), sortable(found.mean), std, title=title, **more)


def text_cells(*texts: object) -> list[Cell]:
    return [Cell(str(text), str(text).lower()) for text in texts]


NOTHING = Cell("-")
