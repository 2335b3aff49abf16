"""Fit text and tables of rich into the width of a terminal. No torch here.

Columns that do not fit go into another table below: rich would cut them, and a part of a number is a wrong number.
"""

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Column, Table

WRAPPED = 24
"""Greatest width of a column of text that may be wrapped."""


def wrapped(markdown: str, width: int) -> str:
    """Wrap paragraphs and list items at ``width``; the lines of an item are indented."""
    lines = []
    for line in markdown.split("\n"):
        indent = "  " if line.startswith("- ") else ""
        filled = textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        lines.append(filled)
    return "\n".join(lines)


def to_terminal(line: str, indent: str = "  ") -> str:
    """A line of facts for standard output, wrapped at the width of the terminal with later lines indented.

    In a file or a pipe it stays one line, unless COLUMNS gives a width. Not for commands, which one wants to copy.
    """
    if not (sys.stdout.isatty() or os.environ.get("COLUMNS")):
        return line
    width = max(shutil.get_terminal_size().columns, 40)
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def fitted(table: "Table", width: int, *, keys: int = 1) -> "list[Table]":
    """The table, or if it is too wide, several tables of some of its columns, each with the first ``keys`` columns.

    The title is above the first table, the caption below the last.
    """
    widths = [_width(table, column) for column in table.columns]
    edge = 2 * table.pad_edge + 2 * (table.box is not None)
    if sum(widths) + edge <= width:
        return [table]
    blocks, used = [[]], sum(widths[:keys]) + edge
    begin = used
    for column in range(keys, len(widths)):
        if blocks[-1] and used + widths[column] > width:
            blocks.append([])
            used = begin
        blocks[-1].append(column)
        used += widths[column]
    made = [_with_columns(table, [*range(keys), *block]) for block in blocks]
    made[0].title, made[-1].caption = table.title, table.caption
    return made


def _width(table: "Table", column: "Column") -> int:
    from rich.cells import cell_len
    from rich.text import Text

    _, right, _, left = table.padding
    texts = [each.plain if isinstance(each, Text) else str(each) for each in (column.header, *column.cells)]
    widest = max(cell_len(line) for text in texts for line in text.split("\n"))
    beside = max(left, right) if table.collapse_padding else left + right
    return (widest if column.no_wrap else min(widest, WRAPPED)) + beside + (table.box is not None)


def _with_columns(table: "Table", columns: Sequence[int]) -> "Table":
    from rich.table import Table

    made = Table(
        box=table.box,
        pad_edge=table.pad_edge,
        padding=table.padding,
        collapse_padding=table.collapse_padding,
        header_style=table.header_style,
        title_justify=table.title_justify,
        caption_justify=table.caption_justify,
    )
    made.columns = [replace(table.columns[number], _index=index) for index, number in enumerate(columns)]
    made.rows = table.rows
    return made
