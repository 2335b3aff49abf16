"""A curve drawn with Braille characters, for a terminal. No matplotlib here."""

import math
from collections.abc import Sequence

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bit of each dot of a Braille character, by row and column. The characters begin at U+2800."""


def curve_lines(
    x: Sequence[float], y: Sequence[float], *, width: int, height: int = 8, logarithmic: bool = False
) -> list[str]:
    """Points joined by lines, with the values at the edges. Each character is 2 x 4 dots. ``logarithmic``: in x."""
    across = [math.log(each) if logarithmic else each for each in x]
    low, high = min(y), max(y)
    labels = [f"{high:.4g}", *[""] * (height - 2), f"{low:.4g}"]
    margin = max(map(len, labels))
    columns, rows = 2 * max(4, width - margin - 2), 4 * height
    cells = [[0] * (columns // 2) for _ in range(height)]
    dots = [
        (_dot(a, across[0], across[-1], columns), rows - 1 - _dot(b, low, high, rows))
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


def _dot(value: float, low: float, high: float, count: int) -> int:
    """Which of ``count`` dots between low and high is nearest to the value."""
    return round((value - low) / (high - low) * (count - 1)) if high > low else (count - 1) // 2
