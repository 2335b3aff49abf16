"""The section *Evidence*: the tests registered in docs/evidence.md over several folders, the paper's numbers beside."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from dape.experiments.reproduce.ladder import (
    RUNG_HEADS,
    TEST_HEADS,
    Finding,
    Ladder,
    Rung,
    finding_cells,
    paper_rows,
    percent,
    registered,
    rung_cells,
)
from dape.report.looks import BLACK, BLUE, GREEN, SKY
from dape.report.page.blocks import DARK, Block, Chart, Table, text_cells
from dape.report.page.section import Section
from dape.results.records import Row
from dape.results.statistics import paired_t

LINES = {"1x": (BLUE, "circle"), "16x": (GREEN, "square")}
"""Multiples of the training length that are drawn."""
OTHER_TEXT = {"1x": (SKY, "circle"), "16x": (BLACK, "square")}


def evidence_of(sections: Sequence[Section]) -> list[Section]:
    """A section about all others, if they have runs of bias-ablation at several numbers of tokens."""
    rows = [row for section in sections for row in section.rows]
    if len(Ladder(rows).rungs) < 2:
        return []
    about = "Is the paper right that content helps? The tests were registered before the runs (docs/evidence.md)."
    return [Section(title="Evidence", about=[about], ladder=rows)]


def ladder_block(rows: Sequence[Row]) -> Block:
    ladder, findings = Ladder([*rows, *paper_rows()]), registered(Ladder(rows))
    points = [point for rung in ladder.rungs for point in _points(ladder, rung)]
    names = list(dict.fromkeys(point["s"] for point in points))
    chart = Chart(
        "ladder",
        "By how much f(QK, B) is below f(B), against the tokens seen in training. The tables have the same numbers.",
        {"metric": "perplexity of f(B) above that of f(QK, B), %", "ours": points, "paper": []},
    )
    return Block(
        title="Does f need content?",
        words=[_in_words(each) for each in findings if each.n],
        series=[_look(name) for name in names],
        charts=[chart],
        tables=[
            Table("Registered tests", TEST_HEADS, [text_cells(*finding_cells(each)) for each in findings], words=2),
            Table(
                "Perplexity of every rung, and the paper's",
                RUNG_HEADS,
                [text_cells(*rung_cells(ladder, rung)) for rung in ladder.rungs],
                words=2,
                notes=[
                    "Means over seeds, with their number. 1x: at the training length. The gap is f(B)'s perplexity "
                    "over that of f(QK, B). The paper does not state the model's size and the number of seeds; "
                    "ours are reduced models that stand for the size named."
                ],
            ),
        ],
    )


def _in_words(found: Finding) -> str:
    _, question, n, effect, interval, p, verdict = finding_cells(found)
    tested = f", 95% interval {interval}, p = {p} after Holm" if found.p is not None else ""
    return f"{found.id}, {question}: {verdict}. {effect}{tested}, {n} seeds."


def _points(ladder: Ladder, rung: Rung) -> Iterator[dict[str, Any]]:
    for ratio in (1, 16):
        values = list(ladder.gaps(rung, ratio).values())
        if not values:
            continue
        mean, test = sum(values) / len(values), paired_t(values) if len(values) > 1 else None
        yield {
            "s": f"{rung.data}, {rung.size}, {ratio}x" if rung.size != "-" else f"{rung.data}, {ratio}x",
            "x": rung.tokens,
            "y": 100 * math.expm1(mean),
            "lo": 100 * math.expm1(test.low) if test else None,
            "hi": 100 * math.expm1(test.high) if test else None,
            "text": percent(mean),
            "n": f"n = {len(values)}",
            "odd": None,
        }


def _look(name: str) -> dict[str, Any]:
    of_stdlib = name.startswith("stdlib, 125m")
    colour, shape = (LINES if of_stdlib else OTHER_TEXT)[name.rpartition(", ")[2]]
    return {"name": name, "light": colour, "dark": DARK[colour], "dash": [1, 0], "shape": shape, "wide": of_stdlib}
