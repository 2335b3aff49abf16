"""The ladder of docs/evidence.md as a figure: perplexity of f(B) over that of f(QK, B), by tokens seen in training."""

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dape.experiments.reproduce.ladder import Ladder, Rung
from dape.report.drawing import our_style
from dape.report.looks import BLUE, GREEN, VERMILION
from dape.results.statistics import paired_t

COLOURS = {"stdlib": BLUE, "sotu": VERMILION}
MARKERS = {"125m": "o", "350m": "s", "2.7b": "^"}


def ladder_figure(ladder: Ladder, ratios: tuple[int, ...] = (1, 16)) -> Figure:
    """One panel per multiple of the training length: every seed, their mean and its 95% interval."""
    with our_style():
        figure = Figure(figsize=(3.6 * len(ratios), 2.9), layout="constrained")
        panels = figure.subplots(1, len(ratios), sharey=True, squeeze=False)[0]
        for panel, ratio in zip(panels, ratios, strict=True):
            for rung in ladder.rungs:
                _draw(panel, ladder, rung, ratio)
            panel.axhline(0, color="#555555", linewidth=0.7)
            panel.set_xscale("log")
            panel.set_title(f"{ratio} training length{'s' if ratio > 1 else ''}")
            panel.set_xlabel("tokens seen in training")
        panels[0].set_ylabel("perplexity of f(B) over f(QK, B), %")
        named = {}
        for panel in panels:
            handles, labels = panel.get_legend_handles_labels()
            named |= dict(zip(labels, handles, strict=True))
        if named:
            panels[-1].legend(named.values(), named.keys(), frameon=False, fontsize=7)
    return figure


def _draw(panel: Axes, ladder: Ladder, rung: Rung, ratio: int) -> None:
    values = list(ladder.gaps(rung, ratio).values())
    if not values:
        return
    colour, marker = COLOURS.get(rung.data, GREEN), MARKERS.get(rung.size, "D")
    mean, test = sum(values) / len(values), paired_t(values)
    panel.plot([rung.tokens] * len(values), [_percent(v) for v in values], ".", color=colour, alpha=0.45, markersize=4)
    if test is not None:
        panel.plot([rung.tokens] * 2, [_percent(test.low), _percent(test.high)], "-", color=colour, linewidth=1)
    panel.plot(
        rung.tokens,
        _percent(mean),
        marker,
        color=colour,
        label=rung.data if rung.size == "-" else f"{rung.data}, {rung.size}",
    )


def _percent(nats: float) -> float:
    return 100 * math.expm1(nats)
