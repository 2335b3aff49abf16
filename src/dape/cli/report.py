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
    """Show results and the paper's numbers on one page in the browser.

    The page has what the folder offers: curves, sortable tables, significance, claims, heat maps and the terms of
    attention. It is a single file that needs no network. DIR is a folder with results.jsonl, which `dape compare`,
    `dape che`, `dape probe` or `dape reproduce` wrote, or a folder with such folders up to three levels below. Needs
    the extra `report`; `dape doctor` says how to install it.
    """

    dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Results of one command, or a folder of several."""
    out: Path | None = None
    """File to write; by default report.html in DIR. A file that is not a report is not overwritten."""
    paper: bool = False
    """Switch the paper's numbers on when the page opens, and also show methods that only the paper has. `dape
    reproduce` folders are always shown this way."""
    live: bool = False
    """Write nothing; serve the page on 127.0.0.1 and update it while runs in DIR are working, until Ctrl-C."""
    port: int = 0
    """Port of --live; by default any free one."""


def run(config: Report) -> int:
    if config.live:
        return _serve(config)
    if config.port:
        raise UsageError("--port is for --live")
    out = config.out or config.dir / "report.html"
    sections = report(config.dir, out, paper=config.paper, warn=lambda text: print(f"warning: {text}", file=sys.stderr))
    rows, size = sum(len(section.rows) for section in sections), out.stat().st_size / 1e6
    print(f"{out}: {count(len(sections), 'section')}, {count(rows, 'row')}, {size:.1f} MB. Open it in a browser.")
    return 0


def _serve(config: Report) -> int:
    """Serve the page until Ctrl-C."""
    from dape.actions.live import serve

    if config.out is not None:
        raise UsageError("--live writes nothing; omit --out, or --live")
    with serve(config.dir, port=config.port, paper=config.paper) as server:
        print(f"{server.url} shows {config.dir} as it grows; Ctrl-C stops the server", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.2)
    return 0
