"""Methods by lengths: as Markdown, for the terminal while rows still come in, as CSV and as LaTeX."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dape.results.numbers import HIGHER_IS_BETTER, as_text, deviation
from dape.results.records import Row
from dape.results.statistics import Results, Spread, arrange, in_words

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

TRAINED_HERE = "(train)"


@dataclass(frozen=True)
class Cell:
    mean: str
    """Empty if there is nothing yet."""
    std: str = ""
    """Empty with one seed."""
    seeds: str = ""
    """How many seeds, if not as many as elsewhere."""
    best: bool = False


@dataclass(frozen=True)
class Grid:
    """A table in words, still without a format."""

    lengths: tuple[int, ...]
    train_length: int | None
    lines: tuple[tuple[str, tuple[Cell, ...]], ...]
    """Method, and its cells by length."""


def grid(results: Results, metric: str = "perplexity") -> Grid:
    cells = {
        (m, n): _cell(results.spread(m, n), len(results.seeds), metric)
        for m in results.methods
        for n in results.lengths
    }
    for length in results.lengths:
        means = {m: found.mean for m in results.methods if (found := results.spread(m, length))}
        best = _best([mean for mean in means.values() if not math.isnan(mean)], metric)
        for method, mean in means.items():
            # What reads the same as the best is as good: nobody could see the difference.
            if best is not None and as_text(mean, metric) == as_text(best, metric):
                cell = cells[method, length]
                cells[method, length] = Cell(cell.mean, cell.std, cell.seeds, best=True)
    lines = tuple((m, tuple(cells[m, n] for n in results.lengths)) for m in results.methods)
    return Grid(results.lengths, results.train_length, lines)


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
    """The lowest perplexity of each column is bold, what was not measured is "-"; below, how it was measured."""
    results = arrange(rows, metric=metric, methods=methods, lengths=lengths, seeds=seeds)
    table = grid(results, metric)
    header = ["method", *(_header(n, table.train_length) for n in table.lengths)]
    lines = [header, ["---", *("---:" for _ in table.lengths)]]
    lines += [[method, *map(_markdown_cell, cells)] for method, cells in table.lines]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n\n".join([text, footer(results, metric), *(f"{why}." for why in results.left_out)]) + "\n"


def _header(length: int, train_length: int | None) -> str:
    return f"{length} {TRAINED_HERE}" if length == train_length else str(length)


def _markdown_cell(cell: Cell) -> str:
    text = _one_line(cell) or "-"
    return f"**{text}**" if cell.best else text


def _one_line(cell: Cell) -> str:
    text = f"{cell.mean} ± {cell.std}" if cell.std else cell.mean
    return f"{text} ({cell.seeds} seeds)" if cell.seeds else text


def footer(results: Results, metric: str = "perplexity") -> str:
    """What a reader must know to judge the numbers, from the rows themselves."""
    rows = results.every_row()
    if not rows:
        return f"No rows of {metric} yet."
    many = len(results.seeds) > 1
    what = (
        f"{metric.capitalize()}, mean ± sample standard deviation over seeds"
        if many
        else f"{metric.capitalize()}, seed"
    )
    parts = [
        f"{what} {in_words(results.seeds)}",
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
    """``name value``, ``name low to high`` where numbers differ, all of them where words differ; nothing if unknown."""
    known = {value for value in values if value not in (None, "")}
    if not known:
        return []
    if len(known) > 1 and all(isinstance(value, int) for value in known):
        return [f"{name} {min(known)} to {max(known)}"]  # pyright: ignore[reportArgumentType]
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
    """The same for rich, also while it fills: "…" is still to come, the best so far of each column stands out.

    In a narrow terminal deviations go below their means; lengths that do not fit even so go into a second table.
    """
    from rich.console import Group
    from rich.text import Text

    results = arrange(rows, metric=metric, methods=methods, lengths=lengths, seeds=seeds)
    table = grid(results, metric)
    table = Grid(table.lengths, train_length or table.train_length, table.lines)
    tall = width is not None and sum(_widths(table, tall=False)) > width
    blocks = _blocks(_widths(table, tall=tall), width)
    notes = [footer(results, metric), *(f"{why}." for why in results.left_out)]
    return Group(*(_rich_table(table, block, tall=tall) for block in blocks), Text("\n".join(notes), "dim"))


def _widths(table: Grid, *, tall: bool) -> list[int]:
    """Of the column of methods, then of each length."""
    names = max([len("method"), *(len(method) for method, _ in table.lines)])
    columns = [
        max(
            len(line)
            for text in [_head(n, table.train_length), *_texts(table, place, tall)]
            for line in text.split("\n")
        )
        for place, n in enumerate(table.lengths)
    ]
    return [width + _PADDING for width in (names, *columns)]


def _texts(table: Grid, place: int, tall: bool) -> list[str]:
    return [_terminal_cell(cells[place], tall=tall) for _, cells in table.lines]


def _head(length: int, train_length: int | None) -> str:
    return f"{length}\n{TRAINED_HERE}" if length == train_length else f"{length}\n"


def _blocks(widths: Sequence[int], room: int | None) -> list[list[int]]:
    """Columns that fit side by side, beside the names."""
    names, *columns = widths
    blocks: list[list[int]] = [[]]
    used = names
    for place, width in enumerate(columns):
        if room is not None and blocks[-1] and used + width > room:
            blocks.append([])
            used = names
        blocks[-1].append(place)
        used += width
    return blocks


def _terminal_cell(cell: Cell, *, tall: bool) -> str:
    if not cell.mean:
        return NOT_YET
    parts = [cell.mean, *([f"±{cell.std}"] if cell.std else []), *([f"({cell.seeds})"] if cell.seeds else [])]
    return "\n".join(parts) if tall else " ".join(parts)


def _rich_table(table: Grid, places: Sequence[int], *, tall: bool) -> "Table":
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, padding=(0, _PADDING, 0, 0), header_style="bold")
    made.add_column("method\n", no_wrap=True, min_width=max([6, *(len(method) for method, _ in table.lines)]))
    for place in places:
        made.add_column(Text(_head(table.lengths[place], table.train_length)), justify="right", no_wrap=True)
    for method, cells in table.lines:
        texts = [_styled(cells[place], _terminal_cell(cells[place], tall=tall)) for place in places]
        made.add_row(Text(method, "cyan"), *texts)
    return made


def _styled(cell: Cell, text: str) -> "RenderableType":
    from rich.text import Text

    styled = Text(text, "bold green" if cell.best else "" if cell.mean else "dim")
    styled.stylize("not bold dim", len(cell.mean) if cell.mean else len(text))
    return styled
