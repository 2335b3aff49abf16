"""The result of an action: rows, as table, figure, data frame or sentences."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.results.records import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

    Tables = Callable[[list[Row], int], Sequence[RenderableType]]
    """Rows and a width in columns, to what the terminal shows."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """The rows of an action, as a table, a figure or a data frame. A notebook shows the table."""

    rows: list[Row]
    out: Path | None = None
    """The folder with the rows and their figures."""
    files: Sequence[str] = ()
    """Names of the files written there."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """The last line of the log of each failed run, by name."""
    make_table: Callable[[list[Row]], str] = field(repr=False, default=lambda rows: by_length(rows))
    make_figure: Callable[[list[Row]], "Figure"] = field(repr=False, default=lambda rows: against_length(rows))
    make_summary: Callable[[list[Row]], str] = field(repr=False, default=lambda rows: "")
    make_terminal: "Tables" = field(repr=False, default=lambda rows, width: [])

    def table(self) -> str:
        """The rows as a Markdown table."""
        return self.make_table(self.rows)

    def figure(self) -> "Figure":
        """A figure of matplotlib. ``.savefig(path)`` writes it; a notebook shows it."""
        return shown_in_notebooks(self.make_figure(self.rows))

    def summary(self) -> str:
        """The results in sentences; may be empty."""
        return self.make_summary(self.rows)

    def terminal(self, width: int) -> "Sequence[RenderableType]":
        """The rows as tables of rich, ``width`` columns wide."""
        return self.make_terminal(self.rows, width)

    def frame(self) -> Any:
        """A ``pandas.DataFrame``; the entries of ``extra`` become columns. Needs pandas."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("frame() needs pandas: pip install pandas") from error
        rows = [asdict(row) for row in self.rows]
        return pandas.DataFrame([{**row.pop("extra"), **row} for row in rows])

    def _repr_markdown_(self) -> str:
        return self.table() if self.rows else "no rows"


def shown_in_notebooks(figure: "Figure") -> "Figure":
    """``figure``, after telling IPython (if it runs) how to show one: by itself it knows figures of pyplot only."""
    ipython: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if ipython is not None:
        pictures = ipython.display_formatter.formatters["image/png"]
        if type(figure) not in pictures:
            pictures.for_type(type(figure), _as_png)
    return figure


def _as_png(figure: "Figure") -> bytes:
    content = BytesIO()
    figure.savefig(content, format="png", dpi=100, bbox_inches="tight")
    return content.getvalue()


def by_length(rows: Sequence[Row]) -> str:
    """A Markdown table with a line per method and a column per length."""
    from dape.report.tables import markdown_table

    return markdown_table(rows, metric=rows[0].metric)


def against_length(rows: Sequence[Row]) -> "Figure":
    """A figure with a curve per method."""
    from dape.report.figures import perplexity_figure

    return perplexity_figure(rows)
