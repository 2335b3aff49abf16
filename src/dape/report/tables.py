"""Tables of methods by lengths: as Markdown, and for a terminal while rows still come in."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from dape.results.numbers import HIGHER_IS_BETTER, as_text, deviation
from dape.results.records import Row
from dape.results.statistics import Results, Spread, arrange, in_words

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

TRAINED_HERE = "(train)"
COSTS = {
    ("tokens", "seen"): "train_tokens",
    ("parameters", "added"): "encoding_parameters",
    ("ms", "a step"): "step_ms",
}
"""What the training of a method took: head of the column -> name in ``Row.extra``."""
UNKNOWN = "-"


@dataclass(frozen=True)
class Cell:
    mean: str
    """Empty if nothing was measured yet."""
    std: str = ""
    """Empty with one seed."""
    seeds: str = ""
    """2/3 if two of the table's three seeds were measured; empty if all were."""
    best: bool = False


@dataclass(frozen=True)
class Grid:
    """A table as texts, before it is formatted."""

    heads: tuple[tuple[str, str], ...]
    """Two words for each column: a length and perhaps "(train)"; for a cost, what it is and its unit."""
    lines: tuple[tuple[str, tuple[Cell, ...]], ...]
    """Each method with its cells, one for each column."""


def grid(results: Results, metric: str = "perplexity", *, train_length: int | None = None) -> Grid:
    """A column for each length, then one for each cost that rows name. ``train_length`` is for tables without rows."""
    cells = {
        (m, n): _cell(results.spread(m, n), len(results.seeds), metric)
        for m in results.methods
        for n in results.lengths
    }
    for length in results.lengths:
        means = {m: found.mean for m in results.methods if (found := results.spread(m, length))}
        best = _best([mean for mean in means.values() if not math.isnan(mean)], metric)
        for method, mean in means.items():
            # Values that are printed alike are all marked: a reader sees no difference.
            if best is not None and as_text(mean, metric) == as_text(best, metric):
                cells[method, length] = replace(cells[method, length], best=True)
    trained, costs = train_length or results.train_length, _costs(results)
    heads = [(str(n), TRAINED_HERE if n == trained else "") for n in results.lengths]
    lines = tuple(
        (m, (*(cells[m, n] for n in results.lengths), *(Cell(cost.get(m, "")) for cost in costs.values())))
        for m in results.methods
    )
    return Grid((*heads, *costs), lines)


def _costs(results: Results) -> dict[tuple[str, str], dict[str, str]]:
    """For each column the cost of each method that has rows: the mean over seeds, "-" if its rows do not say it."""
    costs: dict[tuple[str, str], dict[str, str]] = {head: {} for head in COSTS}
    for method in results.methods:
        of_seed = {seed: row for n in reversed(results.lengths) for seed, row in results.at(method, n).items()}
        for head, name in COSTS.items():
            values = [row.extra[name] for row in of_seed.values() if isinstance(row.extra.get(name), int | float)]
            if of_seed:
                costs[head][method] = f"{fmean(values):,.0f}" if values else UNKNOWN
    return {head: cost for head, cost in costs.items() if set(cost.values()) - {UNKNOWN}}


def _best(means: Sequence[float], metric: str) -> float | None:
    finite = [mean for mean in means if math.isfinite(mean)]
    if not finite:
        return None
    return max(finite) if metric in HIGHER_IS_BETTER else min(finite)


def _cell(found: Spread | None, seeds: int, metric: str) -> Cell:
    if found is None:
        return Cell("")
    std = "" if found.std is None else deviation(found.std, found.mean, metric)
    return Cell(as_text(found.mean, metric), std, "" if found.n == seeds else f"{found.n}/{seeds}")


# Markdown ------------------------------------------------------------------------------------------------------------


def markdown_table(
    rows: Iterable[Row],
    *,
    metric: str = "perplexity",
    methods: Sequence[str] = (),
    lengths: Sequence[int] = (),
    seeds: Sequence[int] = (),
) -> str:
    """The best of each column is bold, what was not measured is "-". Below the table: how it was measured."""
    results = arrange(rows, metric=metric, methods=methods, lengths=lengths, seeds=seeds)
    table = grid(results, metric)
    header = ["method", *one_line_heads(table)]
    text = markdown_lines(header, [[method, *map(_markdown_cell, cells)] for method, cells in table.lines])
    return "\n\n".join([text, footer(results, metric), *(f"{why}." for why in results.left_out)]) + "\n"


def markdown_lines(header: Sequence[str], body: Iterable[Sequence[object]], *, words: int = 1) -> str:
    """A Markdown table. Its first ``words`` columns are aligned left, the others, numbers, right."""
    rule = ["---"] * words + ["---:"] * (len(header) - words)
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in (header, rule, *body))


def one_line_heads(table: Grid) -> list[str]:
    return [" ".join(filter(None, head)) for head in table.heads]


def _markdown_cell(cell: Cell) -> str:
    text = _one_line(cell) or UNKNOWN
    return f"**{text}**" if cell.best else text


def _one_line(cell: Cell) -> str:
    text = f"{cell.mean} ± {cell.std}" if cell.std else cell.mean
    return f"{text} ({cell.seeds} seeds)" if cell.seeds else text


def footer(results: Results, metric: str = "perplexity") -> str:
    """How the rows were measured: seeds, protocol, windows, data and so on."""
    rows = results.every_row()
    if not rows:
        return f"No rows of {metric} yet."
    seeds = "mean ± sample standard deviation over seeds" if len(results.seeds) > 1 else "seed"
    parts = [
        f"{metric.capitalize()}, {seeds} {in_words(results.seeds)}",
        *_named("protocol", [row.protocol for row in rows]),
        *_named("k", [row.k for row in rows]),
        *_named("windows", [row.windows for row in rows]),
        *_named("mode", [row.mode for row in rows]),
        *_named("scored tokens", [row.scored_tokens for row in rows]),
        *_named("data", [row.data_hash[:12] for row in rows]),
        *_named("tokenizer", [row.tokenizer for row in rows]),
        *_named("trained at", [row.train_length for row in rows]),
        *_named("steps", [row.step for row in rows]),
    ]
    return "; ".join(parts) + "."


def _named(name: str, values: Sequence[int | str | None]) -> list[str]:
    """``name value``; for several numbers ``name low to high``, for several words all of them; nothing if unknown."""
    known = {value for value in values if value not in (None, "")}
    if not known:
        return []
    numbers = [value for value in known if isinstance(value, int)]
    if len(numbers) == len(known) > 1:
        return [f"{name} {min(numbers)} to {max(numbers)}"]
    return [f"{name} {in_words(sorted(map(str, known)))}"]


# Terminal ------------------------------------------------------------------------------------------------------------

NOT_YET = "…"
_PADDING = 2


def terminal_table(
    rows: Iterable[Row],
    *,
    metric: str = "perplexity",
    methods: Sequence[str] = (),
    lengths: Sequence[int] = (),
    seeds: Sequence[int] = (),
    train_length: int | None = None,
    width: int | None = None,
) -> "RenderableType":
    """The same table for rich, also while rows still come in: "…" is to come, the best so far of each column is bold.

    In a narrow terminal, deviations are written below their means. Lengths that still do not fit go into more tables.
    """
    from rich.console import Group
    from rich.text import Text

    results = arrange(rows, metric=metric, methods=methods, lengths=lengths, seeds=seeds)
    table = grid(results, metric, train_length=train_length)
    tall = width is not None and sum(_widths(table, tall=False)) > width
    blocks = _blocks(_widths(table, tall=tall), width)
    notes = [footer(results, metric), *(f"{why}." for why in results.left_out)]
    return Group(*(_rich_table(table, block, tall=tall) for block in blocks), Text("\n".join(notes), "dim"))


def _widths(table: Grid, *, tall: bool) -> list[int]:
    """Width of the column of methods, then of each other column."""
    columns = [["method", *(method for method, _ in table.lines)]]
    for column, head in enumerate(table.heads):
        texts = (_terminal_cell(cells[column], tall=tall) for _, cells in table.lines)
        columns.append([*head, *texts])
    return [max(len(line) for text in column for line in text.split("\n")) + _PADDING for column in columns]


def _blocks(widths: Sequence[int], room: int | None) -> list[list[int]]:
    """Columns in groups, each of which fits into ``room`` beside the column of methods."""
    names, *columns = widths
    blocks: list[list[int]] = [[]]
    used = names
    for column, width in enumerate(columns):
        if room is not None and blocks[-1] and used + width > room:
            blocks.append([])
            used = names
        blocks[-1].append(column)
        used += width
    return blocks


def _terminal_cell(cell: Cell, *, tall: bool) -> str:
    if not cell.mean:
        return NOT_YET
    parts = [cell.mean, f"±{cell.std}" if cell.std else "", f"({cell.seeds})" if cell.seeds else ""]
    return ("\n" if tall else " ").join(filter(None, parts))


def _rich_table(table: Grid, columns: Sequence[int], *, tall: bool) -> "Table":
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, padding=(0, _PADDING, 0, 0), header_style="bold")
    made.add_column("method\n", no_wrap=True, min_width=max([6, *(len(method) for method, _ in table.lines)]))
    for column in columns:
        made.add_column(Text("\n".join(table.heads[column])), justify="right", no_wrap=True)
    for method, cells in table.lines:
        texts = [_styled(cells[column], _terminal_cell(cells[column], tall=tall)) for column in columns]
        made.add_row(Text(method, "cyan"), *texts)
    return made


def _styled(cell: Cell, text: str) -> "RenderableType":
    from rich.text import Text

    styled = Text(text, "bold green" if cell.best else "" if cell.mean else "dim")
    styled.stylize("not bold dim", len(cell.mean) if cell.mean else len(text))
    return styled
