"""Figures of encodings: the bias by distance, as a matrix, and at randomised positions. Loads matplotlib."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dape.report.drawing import CAPTION_LINE, caption_lines, our_style, write_caption
from dape.report.looks import BLACK, GREY, PURPLE, looks

if TYPE_CHECKING:
    from dape.evaluation.effects import Effect

WIDTH, ROW, OVERVIEW, ABOVE = 9.6, 2.15, 2.6, 0.35
COLUMNS = ("by distance, one line per head", "as a matrix, head {head}", "through randomised positions, head {head}")
FAINT = 0.55


def encodings_figure(effects: "Sequence[Effect]", *, train_length: int, caption: str) -> Figure:
    """A row of three panels for each encoding. Above them, if there are several, one panel with all encodings."""
    together = OVERVIEW * (len(effects) > 1)
    lines = caption_lines(caption, WIDTH)
    below = 0.12 + CAPTION_LINE * len(lines)
    height = together + ROW * len(effects) + ABOVE + below
    with our_style():
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        engine = figure.get_layout_engine()
        assert engine is not None
        engine.set(rect=(0, below / height, 1, 1 - below / height))  # pyright: ignore[reportCallIssue]
        rows = figure
        if together:
            parts: Any = figure.subfigures(2, 1, height_ratios=(together, height - together))
            above, rows = parts
            _overview(above.subplots(), effects, train_length)
        axes = rows.subplots(len(effects), 3, squeeze=False, width_ratios=(1.25, 1, 1.25))
        for effect, places in zip(effects, axes, strict=True):
            _row(effect, places, train_length)
        write_caption(figure, lines)
    return figure


def _overview(axes: Axes, effects: "Sequence[Effect]", train_length: int) -> None:
    """A line for each encoding: the mean over its heads."""
    styles = looks([each.name for each in effects])
    for effect in effects:
        axes.plot(effect.by_distance.mean(axis=0), label=effect.name, **styles[effect.name].stroke_only())
    _distances(axes, train_length)
    axes.set_title("mean over heads")
    axes.legend(frameon=False, ncols=4, fontsize=8)


def _row(effect: "Effect", places: Sequence[Axes], train_length: int) -> None:
    heads = len(effect.causal)
    shown = heads // 2
    colours = colormaps["viridis"](np.linspace(0, 0.9, heads))
    for head, colour in enumerate(colours):
        places[0].plot(effect.by_distance[head], color=colour, linewidth=1.1)
    _distances(places[0], train_length)
    places[0].set_ylabel(effect.name, fontweight="bold", fontsize=9.5)
    _matrix(places[1], effect.causal[shown])
    places[2].plot(effect.by_distance[shown], color=BLACK, linewidth=1.4, linestyle="--")
    for draw in effect.draws:
        places[2].plot(draw[shown, -1, ::-1], color=PURPLE, linewidth=0.9, alpha=FAINT)
    if not effect.draws:
        places[2].text(0.5, 0.5, "has no such positions", transform=places[2].transAxes, ha="center", color=GREY)
    _distances(places[2], train_length)
    for axes, title in zip(places, COLUMNS, strict=True):
        axes.set_title(title.format(head=shown + 1), fontsize=8.5, fontweight="normal")


def _distances(axes: Axes, train_length: int) -> None:
    axes.axvline(train_length - 1, color="#999999", linewidth=0.7, linestyle=":")
    axes.margins(x=0.01)
    axes.set_xlabel("distance to the key", fontsize=7.5, labelpad=1)


def _matrix(axes: Axes, values: np.ndarray) -> None:
    """Red raises attention, blue lowers it, white leaves it; the future is grey."""
    largest = float(np.nanmax(np.abs(values))) or 1.0
    colours = colormaps["RdBu_r"].with_extremes(bad="#EEEEEE")
    image = axes.imshow(values, cmap=colours, vmin=-largest, vmax=largest, interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, shrink=0.9, pad=0.02).ax.tick_params(labelsize=7)
    axes.set_xlabel("key", fontsize=7.5, labelpad=1)
    axes.set_ylabel("query", fontsize=7.5, labelpad=1)
