"""Perplexity against length as a figure. ``heat_map_figure`` and ``save_figure`` can be imported from here too.

Loads matplotlib: import this module only where something is drawn.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from dape.report.drawing import CAPTION_LINE, caption_lines, our_style, save_figure, write_caption
from dape.report.heat_maps import heat_map_figure
from dape.report.looks import DASH_DOTTED, DASHED, DOTTED, LONG_DASHED, SOLID, Look, looks
from dape.results.numbers import as_text
from dape.results.records import Row
from dape.results.statistics import Results, Spread, arrange, in_words

__all__ = ["heat_map_figure", "perplexity_figure", "save_figure"]

NEAR = 1.5
"""The scale is chosen so that values within this factor of the best at their length can be told apart."""
FAR = 1e4
"""Values beyond this factor of the lowest are not drawn: the line leaves the chart."""

# In inches.
WIDTH, HEIGHT = 7.2, 3.0
LEFT, BELOW, TOP = 0.62, 0.56, 0.32
LABEL_HEIGHT, LABEL_WIDTH, LEADER = 0.155, 0.08, 0.3
BREAK = 0.09
MANY_LENGTHS, SLANTED = 10, 0.25
"""More lengths than this are written slanted, which takes this much more room."""


# What is drawn where -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """A method with the spread over its seeds at each length where it was measured."""

    method: str
    look: Look
    points: tuple[tuple[int, Spread], ...]

    def last(self) -> tuple[int, float]:
        """The last point that is not NaN, where the line ends."""
        known = [(length, found.mean) for length, found in self.points if not math.isnan(found.mean)]
        return known[-1] if known else (self.points[-1][0], math.nan)


@dataclass(frozen=True)
class Scale:
    """Limits of perplexity: one panel from low to high, or two that meet at ``cut``."""

    low: float
    cut: float | None
    high: float
    limit: float
    """Values above it are off the chart."""


def curves_of(results: Results) -> list[Curve]:
    styles = looks(results.methods)
    found = []
    for method in results.methods:
        points = [(length, at) for length in results.lengths if (at := results.spread(method, length))]
        if points:
            found.append(Curve(method, styles[method], tuple(points)))
    return found


def choose_scale(curves: Sequence[Curve]) -> Scale:
    """Most of the room goes to values near the best of their length. Far higher ones get a panel of their own."""
    by_length: dict[int, list[float]] = {}
    for curve in curves:
        for length, found in curve.points:
            by_length.setdefault(length, []).extend(v for v in (found.low, found.mean, found.high) if math.isfinite(v))
    values = [v for at in by_length.values() for v in at if v > 0]
    if not values:
        return Scale(1, None, 10, 10)
    low, limit = min(values), FAR * min(values)
    high = max(v for v in values if v <= limit)
    near = max(v for at in by_length.values() for v in at if v <= NEAR * min(at))
    margin = max(math.log(near / low) * 0.06, 0.01)
    compress = math.log(high / low) > 1.8 * math.log(near / low) + 4 * margin
    if not compress:
        margin = max(math.log(high / low) * 0.06, 0.01)
        return Scale(low * math.exp(-margin), None, high * math.exp(margin), limit)
    return Scale(low * math.exp(-margin), near * math.exp(margin), high * 1.1, limit)


def spread_out(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Heights at least ``gap`` apart within low..high, as near as possible to the ``wanted`` ones, in their order."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    # Isotonic regression by pooling: without the gaps below it, each height must be at least the one before it.
    pools: list[list[float]] = []
    for rank, i in enumerate(order):
        pools.append([wanted[i] - rank * gap])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    highest = high - gap * (len(wanted) - 1)
    placed = [0.0] * len(wanted)
    levels = (level for pool in pools for level in [fmean(pool)] * len(pool))
    for rank, (i, level) in enumerate(zip(order, levels, strict=True)):
        placed[i] = min(max(level, low), max(highest, low)) + rank * gap
    return placed


def nice_ticks(low: float, high: float) -> list[float]:
    """Round numbers for a logarithmic axis: evenly spaced on a short one, 1-2-5 or powers of ten on a long one."""
    if high / low < 5:
        steps = MaxNLocator(nbins=7, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        return [float(tick) for tick in steps if low <= tick <= high]
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ticks = [digit * 10.0**power for power in powers for digit in digits if low <= digit * 10.0**power <= high]
        if len(ticks) <= 6:
            break
    return ticks


# Perplexity against length -------------------------------------------------------------------------------------------


def perplexity_figure(rows: Iterable[Row], *, methods: Sequence[str] = (), title: str = "") -> Figure:
    """A line per method with its name at the end. Perplexities far above the others get a panel of coarser scale."""
    results = arrange(rows, methods=methods)
    curves = curves_of(results)
    if not curves:
        raise ValueError("there are no rows of perplexity to draw")
    scale = choose_scale(curves)
    words = caption_lines(caption(results, scale, curves), WIDTH)
    below = BELOW + CAPTION_LINE * len(words) + SLANTED * (len(results.lengths) > MANY_LENGTHS)
    with our_style():
        figure, panels = _empty_figure(curves, scale, below=below, above=TOP + 0.2 * bool(title))
        for panel in panels:
            _draw_curves(panel, curves, scale)
            _draw_lengths(panel, results)
        _draw_off_chart(panels[-1], curves, scale)
        _label_axes(figure, panels, results, title)
        _name_curves(figure, panels, curves, scale)
        write_caption(figure, words)
    return figure


def _empty_figure(curves: Sequence[Curve], scale: Scale, *, below: float, above: float) -> tuple[Figure, list[Axes]]:
    """A figure and its panels, the lower one first, sized so that all names fit beside them."""
    right = LEADER + 0.1 + LABEL_WIDTH * max(len(_name(curve, scale)) for curve in curves)
    height = below + above + max(HEIGHT, LABEL_HEIGHT * len(curves))
    figure = Figure(figsize=(WIDTH, height))
    room, width = height - below - above, WIDTH - LEFT - right
    if scale.cut is None:
        parts = [(below, room, scale.low, scale.high)]
    else:
        lower = 0.68 * (room - BREAK)
        upper = room - BREAK - lower
        parts = [(below, lower, scale.low, scale.cut), (height - above - upper, upper, scale.cut, scale.high)]
    panels = []
    for bottom, tall, low, high in parts:
        panel = figure.add_axes((LEFT / WIDTH, bottom / height, width / WIDTH, tall / height))
        _set_perplexities(panel, low, high)
        panels.append(panel)
    if len(panels) == 2:
        _mark_break(*panels)
    return figure, panels


def _set_perplexities(panel: Axes, low: float, high: float) -> None:
    panel.set_yscale("log")
    panel.set_ylim(low, high)
    ticks = nice_ticks(low, high)
    panel.set_yticks(ticks, labels=tick_texts(ticks))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.grid(axis="y", color="#E4E4E4", linewidth=0.6)
    panel.set_axisbelow(True)


def tick_texts(ticks: Sequence[float]) -> list[str]:
    """Plain numbers, all with the same number of decimal places."""
    if any(tick >= 1e5 for tick in ticks):
        return [f"{tick:.0e}".replace("e+0", "e") if tick >= 1e5 else f"{tick:g}" for tick in ticks]
    written = [f"{tick:.6g}" for tick in ticks]
    places = max((len(text.partition(".")[2]) for text in written), default=0)
    return [f"{tick:.{places}f}" for tick in ticks]


def _mark_break(lower: Axes, upper: Axes) -> None:
    """Mark the change of scale by two slanted strokes on the axis and a grey background above."""
    upper.set_facecolor("#F5F5F5")
    upper.spines["bottom"].set_visible(False)
    upper.tick_params(bottom=False, labelbottom=False)
    for panel, edge in ((lower, 1), (upper, 0)):
        panel.plot(
            [0],
            [edge],
            transform=panel.transAxes,
            marker=[(-1, -0.6), (1, 0.6)],
            markersize=7,
            linestyle="none",
            color="#555555",
            clip_on=False,
            zorder=10,
        )


def _draw_curves(panel: Axes, curves: Sequence[Curve], scale: Scale) -> None:
    low, high = panel.get_ylim()

    def drawn(value: float) -> float:
        return scale.limit * FAR if value > scale.limit else value  # finite, so that the line goes up to the edge

    for curve in curves:
        lengths = [length for length, _ in curve.points]
        means = passing([drawn(found.mean) for _, found in curve.points], low, high)
        # Both panels draw the whole line, but each marker belongs to one: at the edge of the other it would be cut.
        inside = [index for index, mean in enumerate(means) if low <= mean <= high]
        panel.plot(
            lengths, means, label=curve.method, markevery=inside, zorder=3 + curve.look.adapted, **curve.look.line()
        )
        if any(found.n > 1 for _, found in curve.points):
            bottom, top = (
                [drawn(v) for v in side] for side in zip(*((f.low, f.high) for _, f in curve.points), strict=True)
            )
            panel.fill_between(lengths, bottom, top, color=curve.look.colour, alpha=0.15, linewidth=0, zorder=2)


def passing(values: Sequence[float], low: float, high: float) -> list[float]:
    """Replace points whose adjoining segments all lie outside low..high by NaN.

    A segment just outside the panel would show half of its line width.
    """

    def crosses(a: float, b: float) -> bool:
        return min(a, b) <= high and max(a, b) >= low

    return [
        value if any(crosses(value, near) for near in values[max(0, i - 1) : i + 2]) else math.nan
        for i, value in enumerate(values)
    ]


def _draw_lengths(panel: Axes, results: Results) -> None:
    first, last = min(results.lengths), max(results.lengths)
    panel.set_xscale("log", base=2)
    panel.set_xlim(first / 2**0.2, last * 2**0.12)
    panel.set_xticks(results.lengths, labels=[str(length) for length in results.lengths])
    panel.xaxis.set_minor_locator(NullLocator())
    if len(results.lengths) > MANY_LENGTHS:
        panel.tick_params(axis="x", labelrotation=45)
    if (trained := _training_length_on_chart(results)) is not None:
        panel.axvline(trained, color="#888888", linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)


def _training_length_on_chart(results: Results) -> int | None:
    trained = results.train_length
    return trained if trained is not None and min(results.lengths) <= trained <= max(results.lengths) else None


def _draw_off_chart(top: Axes, curves: Sequence[Curve], scale: Scale) -> None:
    """Triangles on the upper edge, side by side where several methods leave the chart at the same length."""
    drawn: Counter[int] = Counter()
    for curve in curves:
        for length in (length for length, found in curve.points if found.mean > scale.limit):
            top.plot(
                [length / 2 ** (0.09 * drawn[length])],
                [1],
                transform=top.get_xaxis_transform(),
                marker="^",
                markersize=6,
                color=curve.look.colour,
                linestyle="none",
                clip_on=False,
                zorder=9,
            )
            drawn[length] += 1


def _label_axes(figure: Figure, panels: Sequence[Axes], results: Results, title: str) -> None:
    bottom, top = panels[0], panels[-1]
    bottom.set_xlabel("context length (tokens)")
    middle = (bottom.get_position().y0 + top.get_position().y1) / 2
    figure.text(0.012, middle, "perplexity (log scale)", rotation=90, va="center", ha="left")
    if (trained := _training_length_on_chart(results)) is not None:
        top.annotate(
            "training length",
            xy=(trained, 1),
            xycoords=top.get_xaxis_transform(),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            color="#666666",
            fontsize=7.5,
        )
    if title:
        top.set_title(title, loc="left", pad=16)


def _name(curve: Curve, scale: Scale) -> str:
    """The method, with its last value if that is off the chart."""
    value = curve.points[-1][1].mean
    return curve.method if value <= scale.limit else f"{curve.method} ({as_text(value)})"


def _name_curves(figure: Figure, panels: Sequence[Axes], curves: Sequence[Curve], scale: Scale) -> None:
    """Write each name beside the end of its curve, with a thin line to it. Names that would overlap are moved apart."""
    height, width = figure.get_figheight(), figure.get_figwidth()
    boxes = [panel.get_position() for panel in panels]
    ends = [_end_on_chart(curve, panels) for curve in curves]
    wanted = [_height(panel, value) * height for panel, _, value in ends]
    heights = spread_out(wanted, LABEL_HEIGHT, boxes[0].y0 * height, boxes[-1].y1 * height)
    for curve, (panel, length, value), label in zip(curves, ends, heights, strict=True):
        panel.annotate(
            _name(curve, scale),
            xy=(length, value),
            xytext=(boxes[0].x1 + LEADER / width, label / height),
            textcoords="figure fraction",
            color=curve.look.colour,
            fontweight="bold" if curve.look.adapted else "normal",
            va="center",
            annotation_clip=False,
            arrowprops=_LEADER | {"color": curve.look.colour},
        )


_LEADER = {"arrowstyle": "-", "linewidth": 0.6, "alpha": 0.7, "shrinkA": 1, "shrinkB": 4, "relpos": (0, 0.5)}


def _end_on_chart(curve: Curve, panels: Sequence[Axes]) -> tuple[Axes, int, float]:
    """The panel in which a curve ends, the length and the value there. Values off the chart count as its edge."""
    length, value = curve.last()
    panel = next((panel for panel in panels if value <= panel.get_ylim()[1]), panels[-1])
    low, high = panel.get_ylim()
    return panel, length, low if math.isnan(value) else min(max(value, low), high)


def _height(panel: Axes, value: float) -> float:
    """Where ``value`` stands in the panel, as a share of the figure's height."""
    (low, high), box = panel.get_ylim(), panel.get_position()
    return box.y0 + box.height * math.log(value / low) / math.log(high / low)


# In words ------------------------------------------------------------------------------------------------------------


def caption(results: Results, scale: Scale, curves: Sequence[Curve]) -> str:
    """How to read the figure, and what was measured."""
    rows, seeds, n = results.every_row(), results.seeds, len(results.seeds)
    means = [found.mean for curve in curves for _, found in curve.points]
    tokens = sorted({row.scored_tokens for row in rows})
    scored = str(tokens[0]) if len(tokens) == 1 else f"{tokens[0]} to {tokens[-1]}"
    sentences = {
        _strokes(curves): True,
        f"Lines: mean over seeds {in_words(seeds)}; bands: lowest to highest seed.": n > 1,
        f"One seed ({seeds[0]}): nothing here shows the noise of training.": n == 1,
        f"The grey panel continues above {scale.cut or 0:.3g} on a coarser scale.": scale.cut is not None,
        "Triangles: infinite, or off the chart.": any(mean > scale.limit for mean in means),
        "Gaps: not a number.": any(map(math.isnan, means)),
        f"Protocol {rows[0].protocol}, {scored} tokens scored at each length.": True,
        f"Not drawn, as not comparable: {len(results.left_out)}, see the summary.": bool(results.left_out),
    }
    return " ".join(sentence for sentence, holds in sentences.items() if holds and sentence)


def _strokes(curves: Sequence[Curve]) -> str:
    meanings = {
        SOLID: "solid: with DAPE",
        LONG_DASHED: "long dashes: with DAPE whose f reads B alone",
        DASH_DOTTED: "dash-dotted: with DAPE v2",
        DASHED: "dashed: without",
        DOTTED: "dotted: at randomised positions",
    }
    used = [meaning for stroke, meaning in meanings.items() if any(curve.look.stroke == stroke for curve in curves)]
    if not any(curve.look.adapted for curve in curves):
        return ""
    # Variants of one method have different colours.
    shared = [] if any(" (" in curve.method for curve in curves) else ["one colour per base encoding"]
    return f"{'; '.join([*used, *shared]).capitalize()}.".replace("dape", "DAPE")
