"""What an action has found: rows, and ways to look at them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.results.records import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

    Tables = Callable[[list[Row], int], Sequence[RenderableType]]
    """What is shown of rows on so many columns."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """The rows of an action, as a table, a figure or a data frame. A notebook shows the table."""

    rows: list[Row]
    out: Path | None = None
    """Where they lie, with what is drawn from them."""
    files: Sequence[str] = ()
    """What was written there."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """The last words of runs that failed, by name."""
    make_table: Callable[[list[Row]], str] = field(repr=False, default=lambda rows: by_length(rows))
    make_figure: Callable[[list[Row]], "Figure"] = field(repr=False, default=lambda rows: against_length(rows))
    make_summary: Callable[[list[Row]], str] = field(repr=False, default=lambda rows: "")
    make_terminal: "Tables" = field(repr=False, default=lambda rows, width: [])

    def table(self) -> str:
        """In Markdown."""
        return self.make_table(self.rows)

    def figure(self) -> "Figure":
        """A figure of matplotlib. ``.savefig(path)`` writes it."""
        return self.make_figure(self.rows)

    def summary(self) -> str:
        """The same in sentences, if there are any."""
        return self.make_summary(self.rows)

    def terminal(self, width: int) -> "Sequence[RenderableType]":
        """As tables of rich, for so many columns."""
        return self.make_terminal(self.rows, width)

    def frame(self) -> Any:
        """A ``pandas.DataFrame``, one line per row; what ``extra`` holds becomes columns. Needs pandas."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("frame() needs pandas: pip install pandas") from error
        rows = [asdict(row) for row in self.rows]
        return pandas.DataFrame([{**row.pop("extra"), **row} for row in rows])

    def _repr_markdown_(self) -> str:
        return self.table() if self.rows else "no rows"


def by_length(rows: Sequence[Row]) -> str:
    """In Markdown: a line per method, a column per length."""
    from dape.report.tables import markdown_table

    return markdown_table(rows, metric=rows[0].metric)


def against_length(rows: Sequence[Row]) -> "Figure":
    """A curve per method."""
    from dape.report.figures import perplexity_figure

    return perplexity_figure(rows)
