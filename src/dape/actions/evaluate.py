"""Perplexity of a trained model against length: ``dape.evaluate`` and ``dape eval``."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.actions.found import Found
from dape.actions.train import Trained
from dape.evaluation.config import EvalConfig, Mode, Protocol
from dape.results.records import Row, append_rows, check_rows_file
from dape.training.device import set_threads, use_device

if TYPE_CHECKING:
    from dape.data.store import Corpus

Watch = Callable[[int, int, int], None]
"""Told the length, and how many of how many windows are done."""


def evaluate(
    run: str | Path | Trained,
    *,
    lengths: Sequence[int] = (512, 1024, 2048, 4096, 8192),
    last_k: int = 256,
    windows: int = 256,
    protocol: Protocol = "last_k",
    mode: Mode = "packed",
    reach: int | None = None,
    data: "str | Path | Corpus | None" = None,
    json: str | Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    watch: Watch | None = None,
    found: "Callable[[Sequence[Row]], None]" = lambda rows: None,
) -> Found:
    """Measure a model on held-out text.

    Args:
        run: a run's folder (its newest checkpoint), one checkpoint, or what ``dape.train`` returned.
        lengths: tokens of context to evaluate at.
        last_k: scored tokens per window.
        windows: the same number at every length.
        protocol: ``last_k``, ``full``, ``nonoverlap`` or ``per_position``; see :class:`EvalConfig`.
        mode: ``packed``, windows may run across documents, or ``same_document``.
        reach: tokens that fit before every place where a window ends; by default it follows from the text.
        data: text to evaluate on (its held-out part); by default what the model was trained on.
        json: a file to which the rows are appended.
        device: ``cpu``, ``cuda``, ...; ``auto`` takes a GPU if there is one.
        threads: of torch on the CPU.
        watch: told the length and how many of how many windows are done; by default a line on a terminal.
        found: given the rows of every length as soon as they are there.

    Returns:
        The rows, one per length (by position, one per doubling).

    Raises:
        ValueError: for lengths that the text or the encoding does not allow, and for a run that is none.

    Example::

        found = dape.evaluate("runs/dape-kerple-64-seed0", lengths=(64, 512, 2048), last_k=64)
        print(found.table())
    """
    settings = EvalConfig(
        lengths=tuple(lengths), protocol=protocol, last_k=last_k, windows=windows, mode=mode, reach=reach
    )
    settings.check()
    path = None if json is None else Path(json)
    if path is not None:
        check_rows_file(path, "`json`")
    where = run.folder if isinstance(run, Trained) else Path(run)
    rows: list[Row] = []
    torch_device = use_device(device)
    set_threads(threads)
    for new in _measured(where, data, settings, torch_device, watch or _on_terminal):
        if path is not None:
            append_rows(path, new)
        rows += new
        found(new)
    return Found(rows=rows)


def _measured(where: Path, data: Any, settings: EvalConfig, device: Any, watch: Watch) -> Any:
    """The rows of one length after the other."""
    from dape.evaluation.opening import open_corpus, subject_of
    from dape.evaluation.perplexity import as_rows, measure
    from dape.training import checkpoint as checkpoints

    where = checkpoints.find(where)
    description = checkpoints.describe(where)
    corpus = open_corpus(data, where, description)
    model = checkpoints.load_model(where, description, device).eval()
    subject = subject_of(where, description, corpus)
    for measured in measure(model, corpus.validation, settings, watch=watch):
        yield as_rows(measured, subject, settings)


def _on_terminal(length: int, done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{length} tokens: window {done}/{total}   ", end="", file=sys.stderr, flush=True)
