"""What all figures share: style, caption, and files that are the same for the same rows.

Loads matplotlib. There is no pyplot and hence no global state.
"""

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib import style
from matplotlib.figure import Figure

from dape.files import replacing

CAPTION_LINE = 0.122
"""Height in inches."""
LETTERS_PER_INCH = 18.5
"""Of a caption."""

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
    """Whatever the user's own settings of matplotlib are."""
    with style.context(["default", STYLE]):
        yield


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Write ``path`` as .png (150 dots per inch) or .svg, without ending as both; the same bytes for the same figure.

    Each file is written all or not at all. Returns what was written.
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


def caption_lines(text: str, width: float) -> list[str]:
    """Broken to fit below a figure of this width in inches."""
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
