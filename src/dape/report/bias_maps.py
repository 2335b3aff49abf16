"""Bias maps as figures: the paper's triples (A, B, f), f against lag, and images over query and key.

Loads matplotlib: import this module only where something is drawn.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from dape.evaluation.map_files import BiasMaps
from dape.positional.names import parse
from dape.report.drawing import CAPTION_LINE, caption_lines, our_style, save_figure, write_caption
from dape.report.looks import BLUE, COLOURS, DASH_DOTTED, DASHED, DOTTED, GREY, SOLID, VERMILION

SAMPLES_DRAWN = 2
"""Triples are drawn of this many samples, as in the paper."""
POINTS = 256
"""Points of a line. More keys than that are averaged in groups, with the single keys drawn pale behind."""
KIND_COLOURS = {"local": BLUE, "anti-local": VERMILION, "flat": GREY}
HIDDEN = "#CFCFCF"
FAINTEST = 1e-4
"""The smallest weight that has a colour of its own."""

# In inches.
LEFT, ABOVE, GAP_ACROSS, GAP_DOWN = 0.62, 0.62, 0.58, 0.34
TRIPLE_WIDTH, TRIPLE_HEIGHT = 2.7, 1.25
SMALL_WIDTH, SMALL_HEIGHT = 1.12, 0.78
IMAGE, BAR = 1.35, 0.07
HEADING_LETTER, LEGEND_LINE = 0.084, 0.14


def draw_maps(maps: BiasMaps, folder: Path, *, watch: Callable[[str], None] = lambda name: None) -> list[Path]:
    """Write all figures as .png and .svg; ``watch`` is called with each name. Returns what was written."""
    written = []
    for name, draw in figures_of(maps).items():
        watch(name)
        written += save_figure(draw(), folder / name)
    return written


def figures_of(maps: BiasMaps) -> dict[str, Callable[[], Figure]]:
    """Functions that draw the figures, by name: memory need hold one figure at a time only."""
    samples, terms = len(maps.facts["samples"]), maps.facts["terms"]
    found = {f"triples-sample{n + 1}": partial(triples_figure, maps, n) for n in range(min(SAMPLES_DRAWN, samples))}
    found |= {f"{stage}-by-lag": partial(lag_figure, maps, stage) for stage in ("f", "bias") if terms[stage]}
    if maps.images is not None:
        layers = enumerate(maps.facts["layers"])
        found |= {f"images-layer{layer}": partial(image_figure, maps, index) for index, layer in layers}
    return found


def stage_names(maps: BiasMaps) -> dict[str, str]:
    """The stages that the encoding has, with their titles."""
    terms = maps.facts["terms"]
    names = {"scores": "content scores A", "bias": f"bias B ({parse(maps.facts['method']).base})", "f": terms["f"]}
    names |= {"logits": f"logits {terms['logits']}", "weights": "weights"}
    return {stage: name for stage, name in names.items() if terms.get(stage, True)}


def _empty_grid(
    maps: BiasMaps,
    down: int,
    across: int,
    size: tuple[float, float],
    *,
    gaps: tuple[float, float],
    title: str,
    caption: str,
    right: float = 0.2,
) -> tuple[Figure, np.ndarray]:
    """A figure of ``down`` x ``across`` panels of that size in inches, between a heading and a caption."""
    facts = maps.facts
    variant = f" ({facts['variant']})" if facts["variant"] else ""
    heading = f"{facts['method']}{variant}, {facts['length']} tokens, trained at {facts['train_length']}: {title}"
    width = LEFT + max(across * size[0] + (across - 1) * gaps[0] + right, HEADING_LETTER * len(heading))
    lines = caption_lines(caption, width)
    below = 0.6 + CAPTION_LINE * len(lines)
    height = ABOVE + down * size[1] + (down - 1) * gaps[1] + below
    figure = Figure(figsize=(width, height))
    figure.text(LEFT / width, 1 - 0.08 / height, heading, va="top", fontsize=9.5, fontweight="bold")
    write_caption(figure, lines)
    panels = np.empty((down, across), dtype=object)
    for row, column in np.ndindex(down, across):
        x, y = LEFT + column * (size[0] + gaps[0]), height - ABOVE - row * (size[1] + gaps[1]) - size[1]
        panels[row, column] = figure.add_axes((x / width, y / height, size[0] / width, size[1] / height))
    return figure, panels


# Triples: one query, all keys ----------------------------------------------------------------------------------------


def triples_figure(maps: BiasMaps, sample: int) -> Figure:
    """Per layer a row of panels: scores, bias and f of the last query against the key's position, a line per head."""
    names = {stage: name for stage, name in stage_names(maps).items() if stage in ("scores", "bias", "f")}
    layers, heads = maps.facts["layers"], maps.facts["heads"]
    with our_style():
        columns = math.ceil(LEGEND_LINE * (len(heads) + 1) / (len(layers) * (TRIPLE_HEIGHT + GAP_DOWN)))
        figure, panels = _empty_grid(
            maps,
            len(layers),
            len(names),
            (TRIPLE_WIDTH, TRIPLE_HEIGHT),
            gaps=(GAP_ACROSS, GAP_DOWN),
            title=f"last query of sample {sample + 1}",
            caption=_triples_caption(maps, sample),
            right=0.3 + 0.45 * columns,
        )
        for (row, layer), (column, (stage, name)) in product(enumerate(layers), enumerate(names.items())):
            panel = panels[row, column]
            _draw_lines(panel, maps.rows[stage][sample, row], heads, maps.facts["train_length"])
            panel.set_title(name if row == 0 else "", fontsize=8.5, fontweight="normal", loc="center")
            panel.tick_params(labelbottom=row == len(layers) - 1)
            if column == 0:
                panel.set_title(f"layer {layer}", fontsize=8.5, loc="left")
            if row == len(layers) - 1:
                panel.set_xlabel("key position")
        _name_heads(figure, panels[0, -1], heads, columns)
    return figure


def _draw_lines(panel: Axes, values: np.ndarray, heads: Sequence[int], train_length: int) -> None:
    """``values`` [head, key]: a line per head through means of groups of keys, the single keys pale behind."""
    keys = values.shape[-1]
    positions = np.arange(1, keys + 1)
    groups = np.array_split(np.arange(keys), math.ceil(keys / math.ceil(keys / POINTS)))
    for head, line in zip(heads, values, strict=True):
        look = head_look(head)
        if len(groups) < keys:
            panel.plot(positions, line, color=look["color"], linewidth=0.4, alpha=0.12, rasterized=True, zorder=2)
        panel.plot(means(positions, groups), means(line, groups), linewidth=1.0, zorder=3, **look)
    panel.axhline(0, color="#BBBBBB", linewidth=0.6, zorder=1)
    panel.set_xlim(1, max(keys, 2))
    panel.yaxis.set_major_locator(MaxNLocator(4))
    if train_length < keys:  # keys left of it are farther away than any in training
        panel.axvline(keys - train_length + 1, color="#888888", linewidth=0.9, linestyle=DOTTED, zorder=1)


def means(values: np.ndarray, groups: Sequence[np.ndarray]) -> np.ndarray:
    """The mean of each group of indices of the last axis."""
    return np.stack([np.asarray(values, np.float64)[..., group].mean(axis=-1) for group in groups], axis=-1)


def head_look(head: int) -> dict[str, Any]:
    """Nine colours, which repeat with other strokes."""
    repeat, colour = divmod(head - 1, len(COLOURS))
    return {"color": COLOURS[colour], "linestyle": (SOLID, DASHED, DASH_DOTTED, DOTTED)[repeat % 4]}


def _name_heads(figure: Figure, beside: Axes, heads: Sequence[int], columns: int) -> None:
    handles = [beside.plot([], [], linewidth=1.4, label=str(head), **head_look(head))[0] for head in heads]
    box = beside.get_position()
    place = (box.x1 + 0.06 / figure.get_figwidth(), box.y1 + 0.1 / figure.get_figheight())
    figure.legend(
        handles=handles,
        title="head",
        ncols=columns,
        columnspacing=0.8,
        loc="upper left",
        bbox_to_anchor=place,
        frameon=False,
        fontsize=7,
        title_fontsize=7.5,
        handlelength=1.6,
        labelspacing=0.2,
        borderpad=0,
    )


def _triples_caption(maps: BiasMaps, sample: int) -> str:
    facts = maps.facts
    text = f"Step {facts['step']}, {facts['run']}. One line per head. A is scaled by 1/sqrt(d), before bias and mask."
    if facts["length"] > POINTS:
        size = math.ceil(facts["length"] / POINTS)
        text += f" Bold: means of about {size} neighbouring keys; pale: single keys."
    if facts["train_length"] < facts["length"]:
        text += " Left of the dotted line: farther away than any key in training."
    ending = " ".join(facts["samples"][sample]["text"].split())[-60:]
    return f'{text} The text ends in "{ending}".'.replace("$", r"\$")


# f against lag -------------------------------------------------------------------------------------------------------


def lag_figure(maps: BiasMaps, stage: str) -> Figure:
    """Layers by heads: f (or B) of the last query against the lag, mean and standard deviation over samples."""
    layers, heads = maps.facts["layers"], maps.facts["heads"]
    found = {(each["layer"], each["head"]): each for each in maps.facts["heads_summary"]}
    with our_style():
        figure, panels = _empty_grid(
            maps,
            len(layers),
            len(heads),
            (SMALL_WIDTH, SMALL_HEIGHT),
            gaps=(0.12, 0.22),
            title=f"{stage_names(maps)[stage]} by lag",
            caption=_lag_caption(maps, stage),
        )
        for (row, layer), (column, head) in product(enumerate(layers), enumerate(heads)):
            panel = panels[row, column]
            _draw_by_lag(panel, maps, stage, (row, column), found[layer, head])
            panel.sharey(panels[row, 0])
            panel.tick_params(labelleft=column == 0, labelbottom=row == len(layers) - 1, labelsize=6.5)
            panel.set_title(f"head {head}" if row == 0 else "", fontsize=7.5, fontweight="normal", pad=10)
            if column == 0:
                panel.set_ylabel(f"layer {layer}", fontsize=7.5)
        _set_heights(panels)
        first, last = (panel.get_position() for panel in (panels[-1, 0], panels[-1, -1]))
        place = ((first.x0 + last.x1) / 2, first.y0 - 0.24 / figure.get_figheight())
        figure.text(*place, "lag (query minus key, log scale)", ha="center", va="top")
    return figure


def _draw_by_lag(panel: Axes, maps: BiasMaps, stage: str, place: tuple[int, int], found: dict[str, Any]) -> None:
    values = np.asarray(maps.rows[stage][:, place[0], place[1]], np.float64)
    past = np.flatnonzero(maps.lags >= 1)[::-1]  # nearest first
    lags, values = maps.lags[past], values[:, past]
    kind, slope = (found["kind"], found["slope"]) if stage == "f" else (found["bias_kind"], found["bias_slope"])
    colour = KIND_COLOURS[kind]
    panel.axhline(0, color="#BBBBBB", linewidth=0.6, zorder=1)
    if len(lags):
        groups = log_groups(lags)
        x, middle = np.exp(means(np.log(lags), groups)), means(values.mean(axis=0), groups)
        deviation = np.sqrt(means(values.var(axis=0), groups))
        panel.fill_between(x, middle - deviation, middle + deviation, color=colour, alpha=0.2, linewidth=0, zorder=2)
        panel.plot(x, middle, color=colour, linewidth=1.3, zorder=3)
        panel.set_xscale("log")
        panel.set_xlim(1, max(2, lags[-1]))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter("{x:g}")
        if maps.facts["train_length"] <= lags[-1]:
            panel.axvline(maps.facts["train_length"], color="#888888", linewidth=0.9, linestyle=DOTTED, zorder=1)
    dependence = found["input_dependence"] if stage == "f" else None
    share = "" if dependence is None else f"  text {100 * dependence:.0f}%"
    panel.text(
        0,
        1.03,
        f"{slope:+.2f}{share}".replace("-", "\N{MINUS SIGN}"),
        transform=panel.transAxes,
        fontsize=6,
        color=colour,
        va="bottom",
    )


def log_groups(lags: np.ndarray, per_doubling: int = 6) -> list[np.ndarray]:
    """Indices of neighbouring lags, ``per_doubling`` groups between a lag and its double. ``lags`` rise from 1."""
    number = np.floor(np.log2(lags) * per_doubling).astype(int)
    return [np.flatnonzero(number == each) for each in np.unique(number)]


def _set_heights(panels: np.ndarray) -> None:
    """One scale per layer that holds all its lines and bands, and is never of height 0."""
    for row in panels:
        bounds = [b for panel in row for b in panel.dataLim.intervaly if math.isfinite(b)]
        low, high = min([0.0, *bounds]), max([0.0, *bounds])
        margin = 0.08 * (high - low) or 1.0
        row[0].set_ylim(low - margin, high + margin)
        row[0].yaxis.set_major_locator(MaxNLocator(3))


def _lag_caption(maps: BiasMaps, stage: str) -> str:
    samples = len(maps.facts["samples"])
    text = f"Last query, {'mean and standard deviation over' if samples > 1 else 'only'} {samples} sample"
    text += f"{'s' if samples > 1 else ''}, averaged over neighbouring lags; one scale per layer. "
    text += "Number: slope per unit of ln(lag); blue: local (falls), vermilion: anti-local (rises), grey: flat."
    if stage == "f" and samples > 1:
        text += " text: share of f's variance due to the text rather than the lag."
    if maps.facts["train_length"] < maps.facts["length"]:
        text += f" Dotted: training length ({maps.facts['train_length']})."
    return text


# Images over (query, key) --------------------------------------------------------------------------------------------


def image_figure(maps: BiasMaps, layer_index: int) -> Figure:
    """One layer, heads by stages: each panel an image over query and key."""
    assert maps.images is not None
    names, heads = stage_names(maps), maps.facts["heads"]
    with our_style():
        figure, panels = _empty_grid(
            maps,
            len(heads),
            len(names),
            (IMAGE, IMAGE),
            gaps=(0.62, 0.22),
            title=f"layer {maps.facts['layers'][layer_index]}",
            caption=_image_caption(maps),
            right=0.65,
        )
        for (row, head), (column, (stage, name)) in product(enumerate(heads), enumerate(names.items())):
            panel = panels[row, column]
            _draw_image(figure, panel, maps.images[stage][layer_index, row], maps.facts["image"], stage)
            panel.set_title("\n".join(_broken(name)) if row == 0 else "", fontsize=7.5, fontweight="normal")
            panel.tick_params(labelleft=column == 0, labelbottom=row == len(heads) - 1, labelsize=6.5, length=2)
            if column == 0:
                panel.set_ylabel(f"head {head}\nquery", fontsize=7.5)
            if row == len(heads) - 1:
                panel.set_xlabel("key", fontsize=7.5)
    return figure


def _broken(name: str) -> list[str]:
    """Long names in two lines."""
    first, _, rest = name.partition(" ")
    return [name] if len(name) <= 20 else [first, rest]


def _draw_image(figure: Figure, panel: Axes, values: np.ndarray, image: dict[str, Any], stage: str) -> None:
    first, last = image["first"], image["last"]
    colours, scale = _weight_colours() if stage == "weights" else _signed_colours(values)
    edges = (first - 0.5, last + 0.5, last + 0.5, first - 0.5)
    drawn = panel.imshow(values, cmap=colours, norm=scale, extent=edges, interpolation="nearest", aspect="auto")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(MaxNLocator(2, integer=True))
    width, box = figure.get_figwidth(), panel.get_position()
    beside = figure.add_axes((box.x1 + 0.05 / width, box.y0, BAR / width, box.height))
    bar = figure.colorbar(drawn, cax=beside)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    beside.tick_params(labelsize=6, length=2, pad=1)
    if stage == "weights":
        bar.set_ticks([FAINTEST, 1e-2, 1.0])
        beside.yaxis.set_minor_locator(NullLocator())
    else:
        bar.set_ticks(MaxNLocator(4))


def _signed_colours(values: np.ndarray) -> tuple[Colormap, Normalize]:
    """Purple below 0, orange above. The most extreme hundredth of the cells has the colour of the scale's ends."""
    seen = np.abs(values[np.isfinite(values)])
    reach = float(np.quantile(seen, 0.99)) if seen.size else 0.0
    return colormaps["PuOr_r"].with_extremes(bad=HIDDEN), Normalize(-(reach or 1.0), reach or 1.0)


def _weight_colours() -> tuple[Colormap, Normalize]:
    colours = colormaps["cividis"]
    return colours.with_extremes(bad=HIDDEN, under=colours(0.0)), LogNorm(FAINTEST, 1.0)


def _image_caption(maps: BiasMaps) -> str:
    image = maps.facts["image"]
    text = f"Sample {image['sample']}, positions {image['first']} to {image['last']} of {maps.facts['length']}. "
    text += "Orange above 0, purple below, scaled by the 99th percentile of each image; "
    text += "weights on a logarithmic scale. Grey: the future."
    cropped = image["first"] > 1
    return text + (" Weights are of all keys, also those before the first one shown." if cropped else "")
