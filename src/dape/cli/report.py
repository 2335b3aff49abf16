"""``dape report``: result folders as one page for a browser. No torch here."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dape.actions.report import report


@dataclass(frozen=True, kw_only=True)
class Report:
    """One page to look at results in a browser, beside the paper's numbers.

    Curves with values to point at, tables to sort, significance, claims, heat maps and what attention is made of,
    whatever the folder has; everything is in one file that needs no network. DIR is a folder that `dape compare`,
    `dape che`, `dape probe` or `dape reproduce` wrote (it has results.jsonl), or one with such folders up to three
    levels below. Needs the extra `report`: pip install 'dape[report]'.
    """

    dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Results of one command, or a folder of several."""
    out: Path | None = None
    """The page; by default report.html in DIR. A file that is not a report is not overwritten."""


def run(config: Report) -> int:
    out = config.out or config.dir / "report.html"
    sections = report(config.dir, out, warn=lambda words: print(f"warning: {words}", file=sys.stderr))
    rows, size = sum(len(section.rows) for section in sections), out.stat().st_size / 1e6
    print(
        f"{out}: {len(sections)} section{'s' * (len(sections) > 1)}, {rows} rows, {size:.1f} MB. Open it in a browser."
    )
    return 0
