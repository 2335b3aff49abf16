"""Perplexity against length as a figure; the other figures and how to save one are imported along.

Loads matplotlib, so import this module where something is drawn. There is no pyplot and hence no global state.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from dape.report.drawing import CAPTION_LINE, caption_lines, our_style, save_figure, write_caption
from dape.report.heat_maps import heat_map_figure
from dape.report.looks import DASH_DOTTED, DASHED, DOTTED, SOLID, Look, looks
from dape.results.numbers import as_text
from dape.results.records import Row
from dape.results.statistics import Results, Spread, arrange, in_words

__all__ = ["heat_map_figure", "perplexity_figure", "save_figure"]

NEAR = 1.5
"""Within this factor of the best at its length a value gets room to be told from others."""
FAR = 1e4
"""Beyond this factor of the best nothing can be read off any more: the line leaves the chart."""

# In inches.
WIDTH, HEIGHT = 7.2, 3.0
LEFT, BELOW, TOP = 0.62, 0.56, 0.32
LABEL_HEIGHT, LABEL_WIDTH, LEADER = 0.155, 0.08, 0.3
BREAK = 0.09
MANY_LENGTHS, SLANTED = 10, 0.25
"""From how many lengths on they are written slanted, and the room that takes."""


# What is drawn where -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """A method: what its seeds gave at the lengths it was measured at."""

    method: str
    look: Look
    points: tuple[tuple[int, Spread], ...]

    def last(self) -> tuple[int, float]:
        """Where the line ends; NaN is nowhere."""
        known = [(length, found.mean) for length, found in self.points if not math.isnan(found.mean)]
        return known[-1] if known else (self.points[-1][0], math.nan)


@dataclass(frozen=True)
class Scale:
    """Limits of perplexity: one panel from low to high, or two that meet at ``cut``."""

    low: float
    cut: float | None
    high: float
    limit: float
    """Values above are off the chart."""


def curves_of(results: Results) -> list[Curve]:
    styles = looks(results.methods)
    found = []
    for method in results.methods:
        points = [(length, at) for length in results.lengths if (at := results.spread(method, length))]
        if points:
            found.append(Curve(method, styles[method], tuple(points)))
    return found


def choose_scale(curves: Sequence[Curve]) -> Scale:
    """Give what is near the best of its length most of the room, and the rest a panel of its own if it needs one."""
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
    # Subtract the room that the labels below take: what is left must only not decrease. Neighbours that do are pooled.
    pools: list[list[float]] = []
    for rank, i in enumerate(order):
        pools.append([wanted[i] - rank * gap])
        while len(pools) > 1 and _mean(pools[-2]) > _mean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    highest = high - gap * (len(wanted) - 1)
    placed = [0.0] * len(wanted)
    levels = (level for pool in pools for level in [_mean(pool)] * len(pool))
    for rank, (i, level) in enumerate(zip(order, levels, strict=True)):
        placed[i] = min(max(level, low), max(highest, low)) + rank * gap
    return placed


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def nice_ticks(low: float, high: float) -> list[float]:
    """Round numbers on a logarithmic axis: evenly spaced on a short one, 1-2-5 or powers of ten on a long one."""
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
    """Lines with names at their ends. Methods far worse than others get an upper panel with a coarser scale."""
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
    """Panels from the lowest up, sized so that all names fit beside them."""
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
    """Plain numbers, all with as many places as the one that needs most."""
    if any(tick >= 1e5 for tick in ticks):
        return [f"{tick:.0e}".replace("e+0", "e") if tick >= 1e5 else f"{tick:g}" for tick in ticks]
    written = [f"{tick:.6g}" for tick in ticks]
    places = max((len(text.partition(".")[2]) for text in written), default=0)
    return [f"{tick:.{places}f}" for tick in ticks]


def _mark_break(lower: Axes, upper: Axes) -> None:
    """Two slanted strokes on the axis where the scale changes, and another background above."""
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
        return scale.limit * FAR if value > scale.limit else value  # a line that leaves must have somewhere to go

    for curve in curves:
        lengths = [length for length, _ in curve.points]
        means = passing([drawn(found.mean) for _, found in curve.points], low, high)
        # A marker on the edge would be cut in two, so each is drawn in the panel it belongs to only.
        inside = [place for place, mean in enumerate(means) if low <= mean <= high]
        panel.plot(
            lengths, means, label=curve.method, markevery=inside, zorder=3 + curve.look.adapted, **curve.look.line()
        )
        if any(found.n > 1 for _, found in curve.points):
            bottom, top = (
                [drawn(v) for v in side] for side in zip(*((f.low, f.high) for _, f in curve.points), strict=True)
            )
            panel.fill_between(lengths, bottom, top, color=curve.look.colour, alpha=0.15, linewidth=0, zorder=2)


def passing(values: Sequence[float], low: float, high: float) -> list[float]:
    """NaN for points of which no adjoining piece of line is within: just outside, half its width would still show."""

    def crosses(a: float, b: float) -> bool:
        return min(a, b) <= high and max(a, b) >= low

    around = [(values[max(0, i - 1) : i], value, values[i + 1 : i + 2]) for i, value in enumerate(values)]
    return [
        value if crosses(value, value) or any(crosses(value, other) for other in (*before, *after)) else math.nan
        for before, value, after in around
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
    """Triangles on the upper edge, side by side where several methods leave at the same length."""
    taken: dict[int, int] = {}
    for curve in curves:
        for length in (length for length, found in curve.points if found.mean > scale.limit):
            place = taken[length] = taken.get(length, -1) + 1
            top.plot(
                [length / 2 ** (0.09 * place)],
                [1],
                transform=top.get_xaxis_transform(),
                marker="^",
                markersize=6,
                color=curve.look.colour,
                linestyle="none",
                clip_on=False,
                zorder=9,
            )


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
    """With its last value where the chart cannot show it."""
    value = curve.points[-1][1].mean
    return curve.method if value <= scale.limit else f"{curve.method} ({as_text(value)})"


def _name_curves(figure: Figure, panels: Sequence[Axes], curves: Sequence[Curve], scale: Scale) -> None:
    """Beside the ends of the lines, moved apart where they would overlap, each with a thin line to its curve."""
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
    """The panel in which a line ends, and where; what is off the chart ends at its edge."""
    length, value = curve.last()
    panel = next((panel for panel in panels if value <= panel.get_ylim()[1]), panels[-1])
    low, high = panel.get_ylim()
    return panel, length, low if math.isnan(value) else min(max(value, low), high)


def _height(panel: Axes, value: float) -> float:
    """As a share of the figure's height."""
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
        DASH_DOTTED: "dash-dotted: with DAPE v2",
        DASHED: "dashed: without",
        DOTTED: "dotted: at randomised positions",
    }
    used = [meaning for stroke, meaning in meanings.items() if any(curve.look.stroke == stroke for curve in curves)]
    if not any(curve.look.adapted for curve in curves):
        return ""
    # Variants of one method have a colour each.
    shared = [] if any(" (" in curve.method for curve in curves) else ["one colour per base encoding"]
    return f"{'; '.join([*used, *shared]).capitalize()}.".replace("dape", "DAPE")
