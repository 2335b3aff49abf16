"""A curve in the characters of a terminal. No matplotlib here."""

import math
from collections.abc import Sequence

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Of a Braille character, by row and column."""


def curve_lines(
    x: Sequence[float], y: Sequence[float], *, width: int, height: int = 8, logarithmic: bool = False
) -> list[str]:
    """Points joined by lines, with the values at the edges; each character is 2 x 4 dots. ``logarithmic``: in x."""
    across = [math.log(each) if logarithmic else each for each in x]
    low, high = min(y), max(y)
    labels = [_short(high), *[""] * (height - 2), _short(low)]
    margin = max(map(len, labels))
    columns, rows = 2 * max(4, width - margin - 2), 4 * height
    cells = [[0] * (columns // 2) for _ in range(height)]
    dots = [
        (_place(a, across[0], across[-1], columns), rows - 1 - _place(b, low, high, rows))
        for a, b in zip(across, y, strict=True)
    ]
    for (x0, y0), (x1, y1) in zip(dots, dots[1:] or dots, strict=False):
        count = max(abs(x1 - x0), abs(y1 - y0), 1)
        for n in range(count + 1):
            column, row = x0 + (x1 - x0) * n // count, y0 + (y1 - y0) * n // count
            cells[row // 4][column // 2] |= DOTS[row % 4][column % 2]
    drawn = ["".join(chr(0x2800 + cell) for cell in line).rstrip("\u2800") for line in cells]
    first, last = f"{x[0]:g}", f"{x[-1]:g}"
    axis = first + last.rjust(columns // 2 - len(first))
    return [
        *(f"{label:>{margin}} ┤{line}" for label, line in zip(labels, drawn, strict=True)),
        " " * (margin + 2) + axis,
    ]


def _place(value: float, low: float, high: float, count: int) -> int:
    return round((value - low) / (high - low) * (count - 1)) if high > low else (count - 1) // 2


def _short(value: float) -> str:
    return f"{value:.4g}"
