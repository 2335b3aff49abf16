"""``dape harness``: measure a model with lm-evaluation-harness. Imports torch and lm-eval only when it runs."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dape.actions.harness import RESULTS, ROWS, HarnessOptions, harness
from dape.cli.console import open_console
from dape.cli.offline import use_offline
from dape.fitting import fitted
from dape.results.numbers import count

if TYPE_CHECKING:
    from dape.results.records import Row


@dataclass(frozen=True, kw_only=True)
class Harness(HarnessOptions):
    """Measure a model with lm-evaluation-harness: on questions, on text, or on its own tasks.

    MODEL is a folder of the transformers library with its tokenizer: written by `dape export`, or any other model, with
    or without a DAPE adapter (--adapter). --lengths sets the window; without dape, lm-eval silently cuts texts at
    max_position_embeddings. Needs the extra harness; nothing is downloaded.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]


def run(config: Harness) -> int:
    use_offline()
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    rows = harness(config)
    _print(rows)
    _print_missing_windows(config, rows)
    if config.out is not None:
        print(
            f"appended {count(len(rows), 'row')} to {config.out / ROWS}; lm-eval's files are in {config.out / RESULTS}"
        )
    return 0


def _print_missing_windows(config: Harness, rows: "list[Row]") -> None:
    for name, found in {row.extra["task"]: row.windows for row in rows if row.windows is not None}.items():
        if found < min(config.windows, config.limit or config.windows):
            print(f"{name}: the held-out text has room for {count(found, 'window')} only, not {config.windows}")


def _print(rows: "list[Row]") -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("task", no_wrap=True)
    table.add_column("metric", no_wrap=True)
    for header in ("length", "value", "± error", "items", "tokens"):
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        error = row.extra.get("stderr")
        table.add_row(
            row.extra["task"],
            row.metric,
            str(row.length),
            f"{row.value:.4f}",
            "" if error is None else f"{error:.4f}",
            str(row.extra["items"]),
            str(row.scored_tokens),
        )
    console = open_console()
    console.print(*fitted(table, console.width, keys=2), sep="\n")
    for (task, length), cut in {(r.extra["task"], r.length): r.extra.get("cut", 0) for r in rows}.items():
        if cut:
            print(f"{task}: {count(cut, 'text')} longer than {length} tokens: the beginning was cut", file=sys.stderr)
