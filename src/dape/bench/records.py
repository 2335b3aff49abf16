"""The records of benchmarks: written to files, read and shown as tables. Does not import torch.

A record is a flat mapping from names to values. A file is
``{"config": {options, machine, versions}, "rows": [records]}``.
"""

import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dape.files import write_text
from dape.fitting import fitted

if TYPE_CHECKING:
    from rich.table import Table

Record = dict[str, Any]
"""The case (encoding, length, pass, ...), its measurements, and a note, as plain values. A :class:`Spread` called
``name`` takes three entries: its median is ``name``, its quartiles are ``name_q1`` and ``name_q3``."""


# Numbers -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    q1: float
    q3: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Self:
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0])
        q1, median, q3 = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, q1, q3)

    @classmethod
    def found_in(cls, record: Record, name: str) -> Self | None:
        return None if record[name] is None else cls(record[name], record[f"{name}_q1"], record[f"{name}_q3"])


def spread(name: str, found: Spread | None) -> Record:
    """The three entries of a spread in a record; None each if there is none."""
    numbers = (None, None, None) if found is None else (found.median, found.q1, found.q3)
    return dict(zip((name, f"{name}_q1", f"{name}_q3"), numbers, strict=True))


def paired(above: Sequence[float] | None, below: Sequence[float] | None) -> Spread | None:
    """Ratios within a round, in which other load on the machine affects both and cancels."""
    if above is None or below is None:
        return None
    # The last round may lack one of them, if it was interrupted. Extrapolated times can be negative through noise.
    ratios = [a / b for a, b in zip(above, below, strict=False) if a > 0 and b > 0]
    return Spread.of(ratios) if ratios else None


def interrupted_note(done: int, repeats: int) -> str:
    """The note of a case: empty, unless an interruption left fewer repetitions."""
    return "" if done == repeats else f"interrupted after {done} of {repeats} repetitions"


# As a file -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Results:
    settings: Mapping[str, Any]
    """Options, machine, versions, and what else the numbers depend on."""
    records: Sequence[Record]

    @property
    def complete(self) -> bool:
        """False if the benchmark was interrupted."""
        return self.settings["complete"]

    def write(self, path: Path) -> None:
        found = {"config": dict(self.settings), "rows": list(self.records)}
        write_text(path, json.dumps(found, indent=2) + "\n")

    def append(self, path: Path) -> None:
        """Append a line for each record, with the settings that its numbers depend on."""
        about = {name: value for name, value in self.settings.items() if name not in ("json", "append", "figure")}
        lines = [json.dumps({**about, **record}) + "\n" for record in self.records]
        with path.open("a", encoding="utf-8") as file:
            file.writelines(lines)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file of any benchmark."""
        found = json.loads(path.read_text())
        return cls(found["config"], found["rows"])


# As a table ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    header: str
    cell: Callable[[Record], str]
    left: bool = False
    wraps: bool = False


def text(name: str, header: str | None = None, *, wraps: bool = False) -> Column:
    """A column of words, flush left."""
    return Column(header or name, lambda record: str(record[name]), left=True, wraps=wraps)


def count(name: str) -> Column:
    return Column(name, lambda record: str(record[name]))


def make_table(
    title: str,
    caption: str,
    records: Sequence[Record],
    columns: Sequence[Column],
    group: Sequence[str] = (),
    *,
    narrow: bool = False,
) -> "Table":
    """A table with a line per record, in the style of all benchmarks.

    A gap separates records that differ in an entry of ``group``. Notes get a column if there are any. ``narrow`` leaves
    out the space at the edges, to fit 80 columns.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=SIMPLE_HEAD)
    table.pad_edge, table.collapse_padding = not narrow, narrow
    noted = [text("note", wraps=True)] * any(record.get("note") for record in records)
    for column in (shown := [*columns, *noted]):
        table.add_column(
            column.header,
            justify="left" if column.left else "right",
            no_wrap=not column.wraps,
            overflow="fold" if column.wraps else "ellipsis",
        )
    previous = None
    for record in records:
        place = [record[name] for name in group]
        if previous not in (None, place):
            table.add_section()
        table.add_row(*(column.cell(record) for column in shown))
        previous = place
    return table


def print_table(table: "Table") -> None:
    from rich.console import Console

    # Without a terminal, for grep or a file, rows are not wrapped.
    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 200)
    with console.capture() as captured:
        console.print(*fitted(table, console.width), sep="\n")
    # print() reports a closed pipe in the same way as everywhere else.
    print(captured.get(), end="", flush=True)


def with_range(record: Record, name: str, digits: int = 2) -> str:
    """Median and interquartile range."""
    found = Spread.found_in(record, name)
    return "-" if found is None else f"{found.median:.{digits}f} ({found.q3 - found.q1:.{digits}f})"


def pass_name(pass_: str) -> str:
    return pass_.replace("_", "+")


def threads_or_device(settings: Mapping[str, Any]) -> str:
    """The number of threads, or the device if it is not the CPU."""
    if settings.get("device", "cpu") != "cpu":
        return settings["device"]
    return "1 thread" if settings["threads"] == 1 else f"{settings['threads']} threads"
