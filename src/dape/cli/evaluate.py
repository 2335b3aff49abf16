"""``dape eval``: perplexity of a checkpoint against length. Imports torch only when it runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dape.actions.evaluate import evaluate
from dape.cli.console import open_console
from dape.evaluation.config import Mode, Protocol
from dape.results.numbers import count
from dape.training.launch import ProcessesFailedError, is_first

if TYPE_CHECKING:
    from dape.results.records import Row


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Perplexity of a trained model at any lengths, on held-out text.

    By default the training length and its doublings up to 32 times, and the last tokens of windows that end at the same
    place for every length. Prints a table; --json appends one row per length to a file.
    """

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """A run's folder (its newest checkpoint), or one checkpoint."""
    lengths: tuple[int, ...] = ()
    """Tokens of context to evaluate at; by default the training length and its doublings up to 32 times, as far as the
    text and the encoding allow."""
    last_k: int | None = None
    """Scored tokens per window; by default 256, or the shortest length if that is less."""
    windows: int = 256
    """Windows, the same number at every length."""
    protocol: Protocol = "last_k"
    """last_k: windows of every length end at the same tokens, the last k of which are scored. full: the same windows,
    all tokens scored. nonoverlap: the text cut into windows, all tokens scored. per_position: as full, by position."""
    mode: Mode = "packed"
    """packed: windows may run across documents, as in the paper. same_document: each lies within one document."""
    reach: int | None = None
    """Tokens that fit before every place where a window ends, whatever the lengths; by default it follows from the
    text: 32768, or about half of a shorter text. Only windows of one reach score the same tokens."""
    data: str | None = None
    """Text to evaluate on (its held-out part), as for `dape train`; by default what the model was trained on."""
    json: Path | None = None
    """Append the rows to this file, one JSON object per line."""
    device: str = "auto"
    """Where to compute: cpu, cuda, ...; auto takes a GPU if there is one."""
    threads: int | None = None
    """Threads of torch on the CPU; None leaves the choice to torch."""
    processes: int = 1
    """Start so many on this machine, which share the rows of every window: each needs less memory. Or let torchrun
    start them. The numbers are those of one process."""


def run(config: Evaluate) -> int:
    same = ("lengths", "last_k", "windows", "protocol", "mode", "reach", "data", "json", "device", "threads")
    same += ("processes",)
    rows: list[Row] = []
    try:
        evaluate(config.checkpoint, **{name: getattr(config, name) for name in same}, found=rows.extend)
    except ProcessesFailedError as failed:  # they have said why
        return failed.code
    finally:  # what was measured before an interruption too
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
        print(f"{config.processes} processes, of which none held more than {rows[-1].extra['peak_memory_mb']} MB")
    if config.json is not None:
        print(f"appended {count(len(rows), 'row')} to {config.json}")
