"""Tables and figures of recall, functions of rows. Loads rich and matplotlib when called."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dape.experiments.recall import Recall
from dape.fitting import fitted
from dape.results.numbers import count
from dape.results.records import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType


# Questions in text ---------------------------------------------------------------------------------------------------


def text_table(rows: Sequence[Row], *, width: int) -> "RenderableType":
    """One task of one model, lengths by depths: accuracy per token and gain in nats. Last come means over depths."""
    from rich.console import Group
    from rich.table import Table

    values = {(row.length, row.extra["depth"], row.metric): row.value for row in rows}
    depths = sorted({depth for _, depth, _ in values})
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("length", *(f"depth {depth:g}" for depth in depths), "exact", "first", "mean"):
        table.add_column(header, justify="right", no_wrap=True)
    for length in sorted({length for length, _, _ in values}):
        found = {m: [values[length, d, m] for d in depths if (length, d, m) in values] for m in METRICS}
        mean = {metric: sum(numbers) / len(numbers) for metric, numbers in found.items()}
        cells = [_cell(values.get((length, d, "accuracy")), values.get((length, d, "gain_nats"))) for d in depths]
        whole = [f"{100 * mean[metric]:.0f}%" for metric in ("exact", "first_token")]
        table.add_row(str(length), *cells, *whole, _cell(mean["accuracy"], mean["gain_nats"]))
    first = rows[0]
    texts = count(first.windows or 0, "text")
    about = (
        f"{first.protocol}: {first.method}, step {first.step}, trained at {first.train_length}; {texts} "
        f"per cell, {first.extra['filler']}\n"
        "accuracy per token of the answer, and the log-probability (nats) it gains when the text contains the answer"
    )
    return Group(about, *fitted(table, width))


METRICS = ("exact", "accuracy", "first_token", "gain_nats")


def _cell(accuracy: float | None, gain: float | None) -> str:
    return "-" if accuracy is None or gain is None else f"{100 * accuracy:.0f}% {gain:+.2f}"


# Small models --------------------------------------------------------------------------------------------------------


def recall_table(rows: Sequence[Row], plan: Recall, *, width: int | None) -> "RenderableType":
    from dape.report.tables import terminal_table

    return terminal_table(
        rows,
        metric="accuracy",
        methods=plan.methods,
        lengths=plan.config.lengths,
        seeds=range(plan.seeds),
        train_length=plan.config.train_length,
        width=width,
    )


def recall_markdown(rows: Sequence[Row], plan: Recall) -> str:
    from dape.report.tables import markdown_table

    lengths, seeds = plan.config.lengths, range(plan.seeds)
    return markdown_table(rows, metric="accuracy", methods=plan.methods, lengths=lengths, seeds=seeds)


TITLES = {"depth": "Recall of {} pairs, by where the pair stood", "pairs": "Recall, by number of pairs"}


def heat_map(rows: Sequence[Row], plan: Recall, axis: str) -> "Figure":
    """Accuracy by length and ``axis``: depth or pairs."""
    from dape.report.heat_maps import heat_map_figure

    by_axis = [row for row in rows if axis in row.extra]
    return heat_map_figure(by_axis, methods=plan.methods, title=TITLES[axis].format(plan.config.pairs))


def not_learned(rows: Sequence[Row], plan: Recall, enough: float) -> list[str]:
    """A sentence for each run that does not solve the task at the tested length nearest to the training length."""
    nearest = min(plan.config.lengths, key=lambda length: abs(length - plan.config.train_length))
    return [
        f"{row.run} has not learned the task: {100 * row.value:.0f}% at length {row.length}. What it does at greater "
        f"lengths says nothing about its encoding; train with more steps"
        for row in rows
        if row.length == nearest and row.value < enough and not {"depth", "pairs"} & set(row.extra)
    ]
