"""``dape report``: result folders as one page for a browser. No torch here."""

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dape.actions.report import report
from dape.errors import UsageError
from dape.results.numbers import count


@tyro.conf.configure(tyro.conf.FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class Report:
    """One page to look at results in a browser, beside the paper's numbers.

    Curves with values to point at, tables to sort, significance, claims, heat maps and what attention is made of,
    whatever the folder has; everything is in one file that needs no network. DIR is a folder that `dape compare`,
    `dape che`, `dape probe` or `dape reproduce` wrote (it has results.jsonl), or one with such folders up to three
    levels below. Needs the extra `report`; `dape doctor` says how to install it.
    """

    dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Results of one command, or a folder of several."""
    out: Path | None = None
    """The page; by default report.html in DIR. A file that is not a report is not overwritten."""
    paper: bool = False
    """Show the paper's numbers from the beginning, and methods that only the paper has; results of `dape reproduce` are
    always shown so."""
    live: bool = False
    """Write nothing: serve the page on 127.0.0.1 while runs work in DIR. Rows and progress arrive by themselves, until
    Ctrl-C."""
    port: int = 0
    """Of --live; by default any that is free."""


def run(config: Report) -> int:
    if config.live:
        return _serve(config)
    if config.port:
        raise UsageError("--port is for --live")
    out = config.out or config.dir / "report.html"
    sections = report(
        config.dir, out, paper=config.paper, warn=lambda words: print(f"warning: {words}", file=sys.stderr)
    )
    rows, size = sum(len(section.rows) for section in sections), out.stat().st_size / 1e6
    print(f"{out}: {count(len(sections), 'section')}, {count(rows, 'row')}, {size:.1f} MB. Open it in a browser.")
    return 0


def _serve(config: Report) -> int:
    """Until it is interrupted, which is how it ends."""
    from dape.actions.live import serve

    if config.out is not None:
        raise UsageError("--live writes nothing; leave --out out, or --live")
    with serve(config.dir, port=config.port, paper=config.paper) as server:
        print(f"{server.url} shows {config.dir} as it grows; Ctrl-C ends it", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.2)
    return 0
