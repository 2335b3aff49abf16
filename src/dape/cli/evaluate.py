"""``dape eval``: perplexity of a checkpoint by length. Imports torch only when it runs."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dape.actions.evaluate import evaluate
from dape.actions.fields import OnThreads
from dape.cli.console import open_console
from dape.evaluation.config import Mode, Protocol
from dape.results.numbers import count
from dape.training.launch import ProcessesFailedError, is_first

if TYPE_CHECKING:
    from dape.results.records import Row


@dataclass(frozen=True, kw_only=True)
class Evaluate(OnThreads):
    """Measure the perplexity of a trained model at any lengths, on held-out text.

    By default at the training length and its doublings up to 32 times, on the last tokens of windows that end at the
    same place for every length. Prints a table; --json also appends one row per length to a file.
    """

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """A run's folder (its newest checkpoint), or one checkpoint."""
    lengths: tuple[int, ...] = ()
    """Tokens of context to evaluate at; by default the training length and its doublings up to 32 times, as far as the
    text and the encoding allow."""
    last_k: int | None = None
    """Scored tokens per window; by default 256, or the shortest length if that is less."""
    windows: int = 256
    """Windows per length."""
    protocol: Protocol = "last_k"
    """last_k: windows of every length end at the same tokens, and their last k tokens are scored. full: the same
    windows, all tokens scored. nonoverlap: the text cut into windows, all tokens scored. per_position: as full, with
    results by position."""
    mode: Mode = "packed"
    """packed: windows may run across documents, as in the paper. same_document: each lies within one document."""
    reach: int | None = None
    """Windows of every length end only where at least this many tokens come before; by default 32768, or about half of
    a shorter text. Results with the same reach score the same tokens."""
    data: str | None = None
    """Text to evaluate on (its held-out part), as for `dape train`; by default what the model was trained on."""
    json: Path | None = None
    """Append the rows to this file, one JSON object per line."""
    processes: int = 1
    """Processes to start on this machine; torchrun can also start them. They share the rows of every window, so that
    each needs less memory. The results are those of one process."""


def run(config: Evaluate) -> int:
    given = {each.name: getattr(config, each.name) for each in fields(config) if each.name != "checkpoint"}
    rows: list[Row] = []
    try:
        evaluate(config.checkpoint, **given, found=rows.extend)
    except ProcessesFailedError as failed:  # the processes have printed why
        return failed.code
    finally:  # also after an interruption: print the lengths that were measured
        if rows and is_first():
            _print(rows, config)
    return 0


def _print(rows: "list[Row]", config: Evaluate) -> None:
    from rich.table import Table

    first = rows[0]
    print(
        f"{first.method}, step {first.step}: {config.protocol}{f' {first.k}' if first.k else ''}, {config.mode}, "
        f"reach {first.reach}, data {first.data_hash[:12]}"
    )
    table = Table(box=None, pad_edge=False)
    by_position = config.protocol == "per_position"
    middle = ("positions", "nats") if by_position else ("perplexity",)
    for header in ("length", *middle, "tokens", "windows"):
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        bucket = [f"{row.extra['first_position']}-{row.extra['last_position']}"] if by_position else []
        table.add_row(str(row.length), *bucket, f"{row.value:.4f}", str(row.scored_tokens), str(row.windows))
    open_console().print(table)
    if config.protocol != "nonoverlap" and (first.windows or 0) < config.windows:
        print(f"the held-out text has room for {count(first.windows or 0, 'window')} only, not {config.windows}")
    if config.processes > 1:
        print(f"{config.processes} processes, at most {rows[-1].extra['peak_memory_mb']} MB of memory each")
    if config.json is not None:
        print(f"appended {count(len(rows), 'row')} to {config.json}")
