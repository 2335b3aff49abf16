"""Time and peak memory of attention against length, as a figure. Loads matplotlib."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from dape.bench.attention import title_of
from dape.bench.records import Record, Results
from dape.report.drawing import CAPTION_LINE, caption_lines, our_style, write_caption
from dape.report.looks import BLACK, BLUE, BROWN, GREEN, GREY, ORANGE, PURPLE, VERMILION

COLOURS = {
    "fused": BLUE,
    "triton": PURPLE,
    "blocked": GREEN,
    "appendix": VERMILION,
    "reference": ORANGE,
    "sdpa": BLACK,
    "static": GREY,
    "auto": BROWN,
}
PASSES = {"forward": "forward", "forward_backward": "forward and backward"}

# In inches.
PANEL_WIDTH, PANEL_HEIGHT, LEFT, BETWEEN, LEGEND = 2.6, 2.0, 0.7, 0.75, 1.15


def bench_figure(results: Results) -> Figure:
    """Rows of panels for the passes, columns for time and memory; both axes logarithmic, so that a slope of one is
    linear and of two quadratic."""
    rows, title = results.records, title_of(results)
    passes = [name for name in PASSES if any(row["pass"] == name for row in rows)]
    impls = list(dict.fromkeys(row["impl"] for row in rows))
    text = (
        f"{title}. Memory is what a call holds beyond its inputs. A line ends where more did not fit or was not asked."
    )
    width = LEFT + 2 * PANEL_WIDTH + BETWEEN + LEGEND
    lines = caption_lines(text, width)
    below = 0.6 + CAPTION_LINE * len(lines)
    height = below + len(passes) * (PANEL_HEIGHT + 0.55)
    with our_style():
        figure = Figure(figsize=(width, height))
        for down, name in enumerate(passes):
            bottom = below + (len(passes) - 1 - down) * (PANEL_HEIGHT + 0.55)
            of_pass = [row for row in rows if row["pass"] == name]
            for across, (label, value) in enumerate(VALUES.items()):
                left = LEFT + across * (PANEL_WIDTH + BETWEEN)
                panel = figure.add_axes((left / width, bottom / height, PANEL_WIDTH / width, PANEL_HEIGHT / height))
                _draw(panel, of_pass, value)
                panel.set_title(PASSES[name], loc="left", fontsize=8.5)
                panel.set_ylabel(label)
                panel.set_xlabel("length" if down == len(passes) - 1 else "")
        handles = [
            figure.axes[0].plot([], [], color=COLOURS[impl], marker="o", markersize=3, label=impl)[0] for impl in impls
        ]
        figure.legend(handles=handles, loc="upper right", frameon=False, fontsize=8, bbox_to_anchor=(1, 0.97))
        write_caption(figure, lines)
    return figure


VALUES = {"milliseconds": "ms", "peak memory in MB": "peak_mb"}


def _draw(panel: Axes, rows: Sequence[Record], value: str) -> None:
    lengths = sorted({row["length"] for row in rows})
    for impl in dict.fromkeys(row["impl"] for row in rows):
        points = [(row["length"], number) for row in rows if row["impl"] == impl and (number := row[value])]
        if points:
            panel.plot(*zip(*sorted(points), strict=True), color=COLOURS[impl], marker="o", markersize=3, linewidth=1.4)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks(lengths, labels=[str(length) for length in lengths], fontsize=7)
    panel.xaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))
    panel.grid(axis="y", color="#DDDDDD", linewidth=0.6)
