"""Time and peak memory of attention against length, as a figure. Loads matplotlib."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from dape.bench.attention import title_of
from dape.bench.records import Record, Results
from dape.report.drawing import CAPTION_LINE, caption_lines, legend, our_style, write_caption
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
VALUES = {"milliseconds": "ms", "peak memory in MB": "peak_mb"}

# In inches.
PANEL_WIDTH, PANEL_HEIGHT, LEFT, BETWEEN, LEGEND = 2.6, 2.0, 0.7, 0.75, 1.15


def bench_figure(results: Results) -> Figure:
    """A row of panels for each pass: time and memory. On the logarithmic axes slope 1 is linear, slope 2 quadratic."""
    records = results.records
    passes = [name for name in PASSES if any(record["pass"] == name for record in records)]
    impls = list(dict.fromkeys(record["impl"] for record in records))
    text = (
        f"{title_of(results)}. Memory is what a call holds beyond its inputs. A line ends where more did not fit or "
        "was not asked for."
    )
    width = LEFT + 2 * PANEL_WIDTH + BETWEEN + LEGEND
    lines = caption_lines(text, width)
    below = 0.6 + CAPTION_LINE * len(lines)
    height = below + len(passes) * (PANEL_HEIGHT + 0.55)
    with our_style():
        figure = Figure(figsize=(width, height))
        for row, name in enumerate(passes):
            bottom = below + (len(passes) - 1 - row) * (PANEL_HEIGHT + 0.55)
            of_pass = [record for record in records if record["pass"] == name]
            for column, (label, value) in enumerate(VALUES.items()):
                left = LEFT + column * (PANEL_WIDTH + BETWEEN)
                panel = figure.add_axes((left / width, bottom / height, PANEL_WIDTH / width, PANEL_HEIGHT / height))
                _draw(panel, of_pass, value)
                panel.set_title(PASSES[name], loc="left", fontsize=8.5)
                panel.set_ylabel(label)
                panel.set_xlabel("length" if row == len(passes) - 1 else "")
        legend(figure, {impl: {"color": COLOURS[impl], "marker": "o", "markersize": 3} for impl in impls}, fontsize=8)
        write_caption(figure, lines)
    return figure


def _draw(panel: Axes, records: Sequence[Record], value: str) -> None:
    lengths = sorted({record["length"] for record in records})
    for impl in dict.fromkeys(record["impl"] for record in records):
        points = sorted((r["length"], number) for r in records if r["impl"] == impl and (number := r[value]))
        if points:
            panel.plot(*zip(*points, strict=True), color=COLOURS[impl], marker="o", markersize=3, linewidth=1.4)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks(lengths, labels=[str(length) for length in lengths], fontsize=7)
    panel.xaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))
    panel.grid(axis="y", color="#DDDDDD", linewidth=0.6)
