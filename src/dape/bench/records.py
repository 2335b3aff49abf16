"""The result of a benchmark: rows, and how they are written and shown. Does not import torch."""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from dape.files import write_text

if TYPE_CHECKING:
    from rich.table import Table

Pass = Literal["forward", "forward_backward"]


@dataclass(frozen=True, kw_only=True)
class Row:
    impl: str
    encoding: str
    length: int
    pass_: Pass
    ms: float | None = None
    """Median time of one call; None if it was not run."""
    peak_mb: float | None = None
    """Most memory held during one call beyond its inputs, in 10^6 bytes; None if not measured."""
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        return {name.rstrip("_"): value for name, value in asdict(self).items()}


# As a file -----------------------------------------------------------------------------------------------------------


class JsonRow(Protocol):
    def as_json(self) -> dict[str, Any]: ...


def write_json(path: Path, config: dict[str, Any], rows: Iterable[JsonRow]) -> None:
    write_text(path, json.dumps({"config": config, "rows": [row.as_json() for row in rows]}, indent=2) + "\n")


# As a table ----------------------------------------------------------------------------------------------------------


def new_table(title: str, caption: str) -> "Table":
    """Without columns yet, in the one look of all benchmarks."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=SIMPLE_HEAD)


def make_table(rows: Sequence[Row], title: str) -> "Table":
    """One line per row, grouped by length and pass, with times relative to two baselines of the same group."""
    caption = "vs sdpa: time relative to sdpa; speed-up: times faster than appendix; peak MB: memory beyond the inputs"
    table = new_table(title, caption)
    table.add_column("length", justify="right", no_wrap=True)
    table.add_column("pass", no_wrap=True)
    table.add_column("impl", no_wrap=True)
    for header in ("ms", "vs sdpa", "speed-up", "peak MB"):
        table.add_column(header, justify="right", no_wrap=True)
    if any(row.note for row in rows):
        table.add_column("note")
    times = {(row.length, row.pass_, row.impl): row.ms for row in rows}
    previous = None
    for row in rows:
        group = (row.length, row.pass_)
        if previous not in (None, group):
            table.add_section()
        cells = [
            str(row.length),
            row.pass_.replace("_", "+"),
            row.impl,
            _number(row.ms),
            _ratio(row.ms, times.get((*group, "sdpa"))),
            _ratio(times.get((*group, "appendix")), row.ms),
            _number(row.peak_mb),
        ]
        table.add_row(*cells, *([row.note] if len(table.columns) > len(cells) else []))
        previous = group
    return table


def print_table(table: "Table") -> None:
    from rich.console import Console

    # Without a terminal, one line per row: for grep, or for a file.
    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 200)
    with console.capture() as captured:
        console.print(table)
    # Through print, so that a closed pipe is reported as everywhere else.
    print(captured.get(), end="", flush=True)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _ratio(value: float | None, base: float | None) -> str:
    return "-" if not value or not base else f"{value / base:.2f}x"
