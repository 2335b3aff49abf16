"""What all figures share: style, legend, shaded cells, caption, and files that are the same for the same rows.

Loads matplotlib, but not pyplot, and so has no global state.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib import colormaps, style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dape.files import replacing

CAPTION_LINE = 0.122
"""Height of a caption's line in inches."""
LETTERS_PER_INCH = 18.5
"""Letters in an inch of a caption."""
SHADES = colormaps["cividis"]
"""Colours of values from 0 to 1. Lightness alone tells the value: readable in print and with any colour deficiency."""

STYLE = {
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.edgecolor": "#555555",
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "svg.hashsalt": "dape",
}


@contextmanager
def our_style() -> Iterator[None]:
    """Draw in ``STYLE``, whatever the user's own settings of matplotlib are."""
    with style.context(["default", STYLE]):
        yield


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Write ``path`` as .png (150 dots per inch) or .svg; a path without ending as both. Returns what was written.

    The same figure gives the same bytes. A file is written completely or not at all.
    """
    if path.suffix not in ("", ".png", ".svg"):
        raise ValueError(f"a figure is written as .png or .svg, not as {path.name!r}")
    paths = [path] if path.suffix else [path.with_suffix(ending) for ending in (".png", ".svg")]
    for each in paths:
        kind = each.suffix.removeprefix(".")
        undated: dict[str, Any] = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
        with our_style(), replacing(each) as temporary, temporary.open("wb") as file:
            figure.savefig(file, format=kind, dpi=150, metadata=undated)
    return paths


def legend(figure: Figure, lines: Mapping[str, Mapping[str, Any]], fontsize: float = 7.5) -> None:
    """In the upper right corner: ``lines`` maps each label to its arguments of ``plot``."""
    handles = [figure.axes[0].plot([], [], label=label, **line)[0] for label, line in lines.items()]
    figure.legend(handles=handles, loc="upper right", frameon=False, fontsize=fontsize, bbox_to_anchor=(1, 0.97))


def draw_cell(panel: Axes, x: int, y: int, shade: float, text: str, fontsize: float) -> None:
    """A cell of a heat map: ``shade`` from 0 (dark) to 1 (light)."""
    panel.fill_between([x - 0.5, x + 0.5], y - 0.5, y + 0.5, color=SHADES(shade), linewidth=0)
    panel.text(x, y, text, ha="center", va="center", fontsize=fontsize, color="white" if shade < 0.6 else "black")


def caption_lines(text: str, width: float) -> list[str]:
    """``text`` in lines that fit below a figure of this width in inches."""
    return textwrap.wrap(text, int(LETTERS_PER_INCH * width))


def write_caption(figure: Figure, lines: Sequence[str]) -> None:
    figure.text(
        0.08 / figure.get_figwidth(),
        0.06 / figure.get_figheight(),
        "\n".join(lines),
        fontsize=7,
        color="#555555",
        va="bottom",
    )
