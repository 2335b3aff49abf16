"""Accuracy by length and depth (or number of pairs), one small map per method. Loads matplotlib."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure

from dape.report.drawing import CAPTION_LINE, SHADES, caption_lines, draw_cell, our_style, write_caption
from dape.report.looks import VERMILION
from dape.results.records import Row
from dape.results.statistics import comparable, in_words, latest

AXES = {"depth": "depth of the needle (0 first, 1 last)", "pairs": "number of pairs"}
CELL_WIDTH, CELL_HEIGHT, MAPS_PER_ROW = 0.38, 0.3, 3
LEFT, BOTTOM, ABOVE, BETWEEN, BAR = 0.75, 0.6, 0.3, 0.25, 0.75


@dataclass(frozen=True)
class Maps:
    """Mean accuracy over seeds. A place is a depth or a number of pairs."""

    axis: str
    """depth or pairs."""
    methods: tuple[str, ...]
    lengths: tuple[int, ...]
    places: tuple[float, ...]
    train_length: int
    values: dict[str, dict[tuple[int, float], float]]
    """method -> (length, place) -> accuracy."""
    seeds: tuple[int, ...]
    left_out: tuple[str, ...]


def maps_of(rows: Iterable[Row], *, methods: Sequence[str] = ()) -> Maps:
    """Maps of the rows of accuracy that name a depth or a number of pairs. ValueError if there are both, or none."""
    wanted = [row for row in latest(rows) if row.metric == "accuracy" and (not methods or row.method in methods)]
    axes = [axis for axis in AXES if any(axis in row.extra for row in wanted)]
    if len(axes) != 1:
        raise ValueError(f"a map needs rows of accuracy with depth or with pairs in extra; these have {in_words(axes)}")
    kept, left_out = comparable([row for row in wanted if axes[0] in row.extra])
    seen: dict[str, dict[tuple[int, float], dict[int, float]]] = {}
    for row in kept:
        place = float(row.extra[axes[0]])
        seen.setdefault(row.method, {}).setdefault((row.length, place), {})[row.seed] = row.value
    return Maps(
        axis=axes[0],
        methods=tuple(m for m in (methods or seen) if m in seen),
        lengths=tuple(sorted({row.length for row in kept})),
        places=tuple(sorted({float(row.extra[axes[0]]) for row in kept})),
        train_length=kept[0].train_length,
        values={m: {at: sum(by.values()) / len(by) for at, by in cells.items()} for m, cells in seen.items()},
        seeds=tuple(sorted({row.seed for row in kept})),
        left_out=left_out,
    )


def heat_map_figure(rows: Iterable[Row], *, methods: Sequence[str] = (), title: str = "") -> Figure:
    """One map per method: light cells are accurate, crossed ones were not measured."""
    maps = maps_of(rows, methods=methods)
    with our_style():
        figure, panels = _empty_figure(maps, title)
        for method, panel in zip(maps.methods, panels, strict=True):
            _draw_map(panel, maps, method)
        _draw_bar(figure, panels)
        write_caption(figure, caption_lines(_caption(maps), figure.get_figwidth()))
    return figure


def _empty_figure(maps: Maps, title: str) -> tuple[Figure, list[Axes]]:
    across = 2 if len(maps.methods) == 4 else min(MAPS_PER_ROW, len(maps.methods))
    down = math.ceil(len(maps.methods) / across)
    wide, tall = max(CELL_WIDTH * len(maps.lengths), 0.9), max(CELL_HEIGHT * len(maps.places), 0.6)
    width = LEFT + across * (wide + BETWEEN) + BAR
    below = 0.1 + CAPTION_LINE * len(caption_lines(_caption(maps), width))
    height = below + down * (BOTTOM + tall + ABOVE) + (0.3 if title else 0)
    figure = Figure(figsize=(width, height))
    if title:
        figure.text(LEFT / width, 1 - 0.08 / height, title, fontweight="bold", fontsize=9.5, va="top")
    panels = []
    for number in range(len(maps.methods)):
        row, column = divmod(number, across)
        left = LEFT + column * (wide + BETWEEN)
        bottom = below + (down - 1 - row) * (BOTTOM + tall + ABOVE) + BOTTOM
        panels.append(figure.add_axes((left / width, bottom / height, wide / width, tall / height)))
        _label(panels[-1], maps, first_column=column == 0, last_row=number + across >= len(maps.methods))
    return figure, panels


def _label(panel: Axes, maps: Maps, *, first_column: bool, last_row: bool) -> None:
    across, down = range(len(maps.lengths)), range(len(maps.places))
    panel.set_xticks(across, labels=[str(n) for n in maps.lengths], rotation=45, ha="right", rotation_mode="anchor")
    panel.set_yticks(down, labels=[f"{place:g}" for place in maps.places] if first_column else [])
    panel.tick_params(length=0)
    panel.set_xlim(-0.5, len(maps.lengths) - 0.5)
    panel.set_ylim(len(maps.places) - 0.5, -0.5)  # the beginning of the text is on top
    if last_row:
        panel.set_xlabel("context length (tokens)")
    if first_column:
        fits = len(AXES[maps.axis]) * 0.065 <= CELL_HEIGHT * len(maps.places)
        panel.set_ylabel(AXES[maps.axis] if fits else maps.axis)
    for length, text in zip(maps.lengths, panel.get_xticklabels(), strict=True):
        if length == maps.train_length:
            text.set_fontweight("bold")


def _draw_map(panel: Axes, maps: Maps, method: str) -> None:
    panel.set_title(method, fontsize=8.5, loc="left", fontweight="normal")
    for x, length in enumerate(maps.lengths):
        for y, place in enumerate(maps.places):
            value = maps.values[method].get((length, place))
            if value is None or math.isnan(value):
                panel.text(x, y, "x", ha="center", va="center", fontsize=7, color="#AAAAAA")
            else:
                draw_cell(panel, x, y, value, f"{100 * value:.0f}", fontsize=6.5)
    within = sum(length <= maps.train_length for length in maps.lengths)
    if 0 < within < len(maps.lengths):
        panel.axvline(within - 0.5, color=VERMILION, linewidth=1.4)


def _draw_bar(figure: Figure, panels: Sequence[Axes]) -> None:
    width = figure.get_figwidth()
    box = panels[0].get_position()
    right = max(panel.get_position().x1 for panel in panels)
    beside = figure.add_axes((right + 0.15 / width, box.y0, 0.1 / width, box.height))
    bar = figure.colorbar(ScalarMappable(cmap=SHADES), cax=beside, ticks=[0, 0.5, 1])
    bar.ax.set_yticklabels(["0%", "50%", "100%"])
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]


def _caption(maps: Maps) -> str:
    seeds = f"mean over seeds {in_words(maps.seeds)}" if len(maps.seeds) > 1 else f"one seed ({in_words(maps.seeds)})"
    text = f"Accuracy in percent, {seeds}; bold: training length ({maps.train_length}), right of the line: beyond it."
    complete = all(len(cells) == len(maps.lengths) * len(maps.places) for cells in maps.values.values())
    text += "" if complete else " x: not measured."
    return text + (" Some rows are not comparable and left out." if maps.left_out else "")
