"""Results of the generated tests: a table per test, with the ability it isolates, and a figure of all."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dape.report.tables import markdown_table
from dape.results.records import Row
from dape.results.statistics import arrange
from dape.tasks.abilities.catalogue import ABILITIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 4
"""Panels of the figure in a line."""

LEARNED = 0.9
"""Accuracy at the training length below which other lengths say nothing about encodings."""


def tests_markdown(rows: Sequence[Row]) -> str:
    parts = []
    for test in dict.fromkeys(row.protocol for row in rows):
        own = [row for row in rows if row.protocol == test]
        isolates = ABILITIES[test].isolates if test in ABILITIES else ""
        parts.append(f"**{test}**, {isolates}\n\n{markdown_table(own, metric='accuracy')}")
    return "\n".join(parts)


def not_learned(rows: Sequence[Row]) -> list[str]:
    """A sentence for each run that does not solve its test at the training length."""
    return [
        f"{row.run} has not learned the test: {100 * row.value:.0f}% at length {row.length}. What it does at greater "
        "lengths says nothing about its encoding; train with more steps"
        for row in rows
        if row.length == row.train_length and row.value < LEARNED
    ]


def tests_figure(rows: Sequence[Row]) -> "Figure":
    """A panel for each test: the mean accuracy over seeds against the length."""
    from matplotlib.figure import Figure

    from dape.report.drawing import our_style
    from dape.report.looks import looks

    tests = list(dict.fromkeys(row.protocol for row in rows))
    styles = looks(dict.fromkeys(row.method for row in rows))
    lines = -(-len(tests) // COLUMNS)
    with our_style():
        figure = Figure(figsize=(9.6, 2.1 * lines + 0.5), layout="constrained")
        axes = figure.subplots(lines, COLUMNS, squeeze=False, sharey=True).flatten()
        for panel in axes[len(tests) :]:
            panel.set_axis_off()
        for test, panel in zip(tests, axes, strict=False):
            results = arrange([row for row in rows if row.protocol == test], metric="accuracy")
            for method in results.methods:
                found = [(n, spread.mean) for n in results.lengths if (spread := results.spread(method, n))]
                panel.plot(*zip(*found, strict=True), label=method, **styles[method].line())
            panel.axvline(results.train_length or 0, color="#999999", linewidth=0.7, linestyle=":")
            panel.set(title=test, xscale="log", ylim=(-0.03, 1.03), xticks=results.lengths)
            panel.set_xticklabels([str(n) for n in results.lengths])
            panel.minorticks_off()
        handles = {
            label: line for panel in axes for line, label in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        figure.legend(list(handles.values()), list(handles), loc="outside upper center", ncols=8, frameon=False)
        figure.supxlabel("context length (tokens)", fontsize=9)
        figure.supylabel("accuracy", fontsize=9)
    return figure
