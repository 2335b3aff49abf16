"""Tables and figures of a study of treatments, functions of rows. Loads matplotlib when a figure is asked for."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dape.experiments.adapters.config import BASE
from dape.report.tables import markdown_lines
from dape.results.numbers import count, p_text
from dape.results.records import Row
from dape.results.statistics import Results, arrange, holm, paired_t

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dape.report.looks import Look

LEARNED = 0.9
"""Accuracy at the training length below which other lengths say nothing about treatments."""
ADAPTIVE = "dape-kerple"
"""The whole method, on the bias that the paper uses most. Every other treatment is compared with it."""

# In inches.
PANEL_WIDTH, PANEL_HEIGHT, GAP, LEFT, LEGEND = 2.3, 2.5, 0.25, 0.65, 1.35


def metric_of(rows: Sequence[Row]) -> str:
    return "accuracy" if any(row.metric == "accuracy" for row in rows) else "perplexity"


def tuning_lengths(rows: Sequence[Row]) -> list[int]:
    return sorted({row.extra["tuned_at"] for row in rows if row.extra["tuned_at"]})


def tuned_at(rows: Sequence[Row], length: int) -> list[Row]:
    """Rows of treatments tuned at this length, and of those that are not tuned."""
    return [row for row in rows if row.extra["tuned_at"] in (0, length)]


def not_learned(rows: Sequence[Row]) -> list[str]:
    """A sentence for each base model that does not solve the task at its training length."""
    return [
        f"{row.run} has not learned the task: {100 * row.value:.0f}% at its own length, {row.length}. What treatments "
        "do to it says nothing; train the base for more steps."
        for row in rows
        if row.metric == "accuracy"
        and row.extra["treatment"] == BASE
        and row.length == row.train_length
        and "depth" not in row.extra
        and row.value < LEARNED
    ]


# The whole method against each other treatment -----------------------------------------------------------------------


def comparison(rows: Sequence[Row]) -> str:
    """Markdown: what ``ADAPTIVE`` gains over every other treatment that was tuned at the same length.

    The two treatments of a pair have the same seed: the same base model, the same text in training and testing.
    """
    metric, lines = metric_of(rows), []
    for length in tuning_lengths(rows):
        results = arrange(tuned_at(rows, length), metric=metric)
        others = [m for m in results.methods if m != ADAPTIVE]
        if ADAPTIVE in results.methods and others:
            lines += [f"Tuned at {length} tokens:", "", _table(results, others, metric), ""]
    if not lines:
        return ""
    unit = "points of accuracy" if metric == "accuracy" else "perplexity, in percent"
    text = (
        f"{ADAPTIVE} against each other treatment: difference in {unit}, mean over seeds; in brackets p of a paired "
        "t-test over seeds after Holm's correction within a table. "
        + ("Above 0 it is better." if metric == "accuracy" else "Below 0 it is better.")
    )
    return "\n".join(["## The whole method against the others", "", text, "", *lines]).rstrip() + "\n"


def _table(results: Results, others: Sequence[str], metric: str) -> str:
    gaps = {(other, length): _gaps(results, other, length, metric) for other in others for length in results.lengths}
    tests = {at: paired_t(found) if len(found) > 1 else None for at, found in gaps.items()}
    corrected = dict(zip(tests, holm([test.p if test else None for test in tests.values()]), strict=True))
    body = [
        [other, *(_cell(gaps[other, length], corrected[other, length], metric) for length in results.lengths)]
        for other in others
    ]
    return markdown_lines(["against", *map(str, results.lengths)], body)


def _gaps(results: Results, other: str, length: int, metric: str) -> list[float]:
    ours, theirs = results.at(ADAPTIVE, length), results.at(other, length)
    values = [(ours[seed].value, theirs[seed].value) for seed in sorted(ours.keys() & theirs.keys())]
    if metric == "accuracy":
        return [a - b for a, b in values]
    return [math.log(a) - math.log(b) for a, b in values if math.isfinite(a) and math.isfinite(b)]


def _cell(gaps: Sequence[float], p: float | None, metric: str) -> str:
    if not gaps:
        return "-"
    mean = sum(gaps) / len(gaps)
    change = 100 * (mean if metric == "accuracy" else math.expm1(mean))
    return f"{change:+.1f}" + (f" ({p_text(p)})" if p is not None else "")


# The figure ----------------------------------------------------------------------------------------------------------


def study_figure(rows: Sequence[Row]) -> "Figure":
    """One panel per tuning length, a line per treatment: the mean over seeds, in a band from lowest to highest."""
    from matplotlib.figure import Figure

    from dape.report.drawing import CAPTION_LINE, caption_lines, legend, our_style, write_caption
    from dape.report.looks import looks

    metric, tunings = metric_of(rows), tuning_lengths(rows) or [0]
    styles = looks(dict.fromkeys(row.method for row in rows))
    width = LEFT + len(tunings) * (PANEL_WIDTH + GAP) + LEGEND
    lines = caption_lines(_caption(rows, metric), width)
    below = 0.55 + CAPTION_LINE * len(lines)
    height = below + PANEL_HEIGHT + 0.35
    with our_style():
        figure = Figure(figsize=(width, height))
        for column, tuning in enumerate(tunings):
            left = LEFT + column * (PANEL_WIDTH + GAP)
            box = (left / width, below / height, PANEL_WIDTH / width, PANEL_HEIGHT / height)
            panel = figure.add_axes(box, sharey=figure.axes[0] if column else None)
            _draw(panel, arrange(tuned_at(rows, tuning), metric=metric), styles, metric)
            panel.set_title(f"tuned at {tuning}" if tuning else "not tuned", loc="left", fontsize=8.5)
            panel.tick_params(labelleft=column == 0, which="both")
        figure.axes[0].set_ylabel("accuracy in percent" if metric == "accuracy" else "perplexity")
        legend(figure, {method: look.line() for method, look in styles.items()})
        write_caption(figure, lines)
    return figure


def _draw(panel: "Axes", results: Results, styles: "dict[str, Look]", metric: str) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    factor = 100 if metric == "accuracy" else 1
    for method in results.methods:
        found = [(length, at) for length in results.lengths if (at := results.spread(method, length))]
        lengths = [length for length, _ in found]
        panel.plot(lengths, [factor * at.mean for _, at in found], **styles[method].line())
        low, high = [factor * at.low for _, at in found], [factor * at.high for _, at in found]
        panel.fill_between(lengths, low, high, color=styles[method].colour, alpha=0.15, linewidth=0)
    if results.train_length:
        panel.axvline(results.train_length, color="#888888", linewidth=0.9, linestyle=(0, (2, 2)))
    panel.set_xscale("log", base=2)
    panel.set_xticks(results.lengths, labels=[str(length) for length in results.lengths], fontsize=7)
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xlabel("tokens of context")
    if metric == "accuracy":
        panel.set_ylim(-3, 103)
        return
    panel.set_yscale("log")
    for axis_format in (panel.yaxis.set_major_formatter, panel.yaxis.set_minor_formatter):
        axis_format(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "1235" else ""))


def _caption(rows: Sequence[Row], metric: str) -> str:
    first = next(row for row in rows if row.metric == metric)
    seeds = len({row.seed for row in rows})
    what = (
        f"perplexity of the same last {first.k} tokens at every length"
        if metric == "perplexity"
        else "values found by their keys"
    )
    windows = count(first.windows or 0, "window")
    return (
        f"{first.extra['data']}: {what}, {windows}; {count(seeds, 'model')} trained at {first.train_length} "
        "tokens (dashed upright), mean and range. rope is the model itself; pi and yarn are not tuned, their scaling "
        "is chosen for each length."
    )
