"""What a section of the page is made of: blocks with tables and charts, still without HTML."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dape.positional.catalogue import ENTRIES
from dape.positional.names import parse
from dape.report.looks import COLOURS, DASH_DOTTED, DASHED, DOTTED, looks
from dape.report.page.section import Mode
from dape.results.numbers import as_text, deviation
from dape.results.statistics import Spread

# The colours of looks.py, lighter: on a dark page they are as far from the ground as those on a white one.
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
"""Markers of matplotlib -> those of Vega."""
DASHES = {DASHED: [7, 4], DASH_DOTTED: [10, 3, 2, 3], DOTTED: [2, 3]}


@dataclass(frozen=True)
class Cell:
    text: str
    sort: float | str | None = None
    """None (not measured, not a number) goes last."""
    spread: str = ""
    """Written small behind the text."""
    mark: str = ""
    best: bool = False
    title: str = ""
    """More, shown when pointed at."""


@dataclass(frozen=True)
class Table:
    name: str
    headers: Sequence[str]
    lines: Sequence[Sequence[Cell]]
    words: int = 1
    """So many first columns are words, the others numbers."""
    notes: Sequence[str] = ()
    swatches: bool = False
    """The first column names series of the block's charts."""


@dataclass(frozen=True)
class Chart:
    kind: str
    """Which function of charts.js draws it."""
    label: str
    """In words, for those who do not see it."""
    data: Mapping[str, Any]
    title: str = ""
    group: str = ""
    """Heading over several small ones."""


@dataclass(frozen=True)
class Block:
    """A part of a section that is read as one: controls, charts and tables of the same rows."""

    title: str
    words: Sequence[str] = ()
    """Sentences that say what is there to be seen."""
    series: Sequence[Mapping[str, Any]] = ()
    """Lines with their looks: a legend that switches them on and off."""
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    paper: Sequence[Table] = ()
    """The paper's numbers. With these there is a switch between ours, the paper's and both."""
    details: Sequence[tuple[str, Table]] = ()
    """Tables that are opened by whoever wants them, with a summary."""
    caveats: Sequence[str] = ()
    mode: Mode = "both"
    """Whose numbers are shown first."""


@dataclass(frozen=True)
class Fact:
    name: str
    values: Sequence[str]


@dataclass(frozen=True)
class Claims:
    lines: Sequence[Any]
    counts: Mapping[str, int]
    """By our verdict."""


@dataclass(frozen=True)
class View:
    """A section, ready for the template."""

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
    """As in the catalogue, each encoding followed by DAPE on it: rows come in the order in which runs ended."""
    known = {name: place for place, name in enumerate(ENTRIES)}

    def place(label: str) -> tuple[int, str, bool, str]:
        name = parse(label.partition(" (")[0])
        return known.get(name.base, len(known)), name.base, bool(name.wrapper), label

    return sorted(dict.fromkeys(labels), key=place)


# Numbers -------------------------------------------------------------------------------------------------------------


def finite(value: float | None) -> float | None:
    """JSON has no infinity and no NaN."""
    return value if value is not None and math.isfinite(value) else None


def sortable(value: float) -> float | None:
    """Infinite is worse than any number; NaN is nothing."""
    return None if math.isnan(value) else max(min(value, 1e300), -1e300)


def spread_cell(values: Mapping[int, float], found: Spread, metric: str, **more: Any) -> Cell:
    """Mean and deviation over seeds; what is not finite is said, and by which seed."""
    std = "" if found.std is None else f"± {deviation(found.std, found.mean, metric)}"
    odd = sum(not math.isfinite(value) for value in values.values())
    if odd and found.n > 1:
        std = f"{odd} of {found.n} seeds not finite"
    by_seed = ", ".join(f"seed {seed}: {as_text(value, metric)}" for seed, value in sorted(values.items()))
    title = "\n".join(filter(None, [by_seed, more.pop("title", "")]))
    return Cell(as_text(found.mean, metric), sortable(found.mean), std, title=title, **more)


def text_cells(*texts: object) -> list[Cell]:
    return [Cell(str(text), str(text).lower()) for text in texts]


NOTHING = Cell("-")
