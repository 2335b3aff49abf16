"""Perplexity of a trained model against length: ``dape.evaluate`` and ``dape eval``."""

import json as texts
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.actions.found import Found
from dape.actions.train import Trained, name_of, own_device
from dape.evaluation.config import EvalConfig, Mode, Protocol
from dape.files import scratch
from dape.machine import peak_bytes
from dape.results.records import Row, append_rows, check_rows_file, read_rows
from dape.training.device import set_threads, use_device
from dape.training.interrupt import stop_with
from dape.training.launch import ProcessesFailedError, check_processes, in_group, launcher, run_processes, speaks

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
    processes: int = 1,
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
        processes: to start on this machine, which share the rows of every window, so that each needs less memory;
            under torchrun, those that it has started. The nats are those of one process.
        watch: told the length and how many of how many windows are done; by default a line on a terminal. Not with
            ``processes``.
        found: given the rows of every length as soon as they are there; with ``processes``, at the end.

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
    check_processes(processes)
    if processes > 1 and not in_group():
        given = {"device": device, "threads": threads, **asdict(settings)}
        measured = _launched({"run": str(where), "data": None if data is None else name_of(data), **given}, processes)
    else:
        if in_group():
            stop_with(launcher())
        torch_device = use_device(own_device(device))
        set_threads(threads)
        measured = _measured(where, data, settings, torch_device, watch or ProgressLine())
    rows: list[Row] = []
    for new in measured:
        if path is not None and speaks():
            append_rows(path, new)
        rows += new
        found(new)
    return Found(rows=rows)


def _launched(given: dict[str, Any], processes: int) -> Iterator[list[Row]]:
    """The same call in several processes; what was measured before something went wrong, too."""
    with scratch("dape-eval") as folder:
        path = folder / "rows.jsonl"
        words = ["-m", "dape.cli.process", "eval", texts.dumps({**given, "json": str(path)})]
        code = run_processes(words, processes, restarts=0)
        if path.exists():
            yield read_rows(path)
    if code > 128:
        raise KeyboardInterrupt
    if code:
        raise ProcessesFailedError(code, processes, "evaluation")


def _measured(where: Path, data: Any, settings: EvalConfig, device: Any, watch: Watch) -> Iterator[list[Row]]:
    """The rows of one length after the other; of several processes, in each of them."""
    from dape.evaluation.context_parallel import SharedWindows
    from dape.evaluation.opening import open_corpus, subject_of
    from dape.evaluation.perplexity import as_rows, measure
    from dape.training import checkpoint as checkpoints
    from dape.training.parallel import joined

    def opened() -> Any:
        found = checkpoints.find(where)
        description = checkpoints.describe(found)
        return found, description, open_corpus(data, found, description)

    with joined(None, device) as group:
        group.check_same(run=str(where), data=None if data is None else name_of(data), **asdict(settings))
        if not group.alone:  # one prepares the text, then the others find it
            group.together(lambda: opened() if group.speaks else None)
        found, description, corpus = group.together(opened)
        group.check_same(checkpoint=found.name, text=corpus.hash)
        model = group.together(lambda: checkpoints.load_model(found, description, device).eval())
        subject, reader = subject_of(found, description, corpus), None if group.alone else SharedWindows(group)
        watch = watch if group.speaks else lambda length, done, total: None
        lengths = measure(model, corpus.validation, settings, watch=watch, reader=reader)
        while (measured := group.together(lambda: next(lengths, None), ValueError)) is not None:
            peaks = [float(text) for text in group.texts(str(peak_bytes()))]
            extra = {**subject.extra, "processes": group.world, "peak_memory_mb": round(max(peaks) / 1e6)}
            yield as_rows(measured, replace(subject, extra=extra), settings)


class ProgressLine:
    """The window at which the work is; where there is no terminal, a line every ten seconds."""

    SECONDS = 10.0

    def __init__(self) -> None:
        self._spoken = time.monotonic()

    def __call__(self, length: int, done: int, total: int) -> None:
        text = f"{length} tokens: window {done}/{total}"
        if sys.stderr.isatty():
            print(f"\r{text}   ", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self._spoken > self.SECONDS:
            self._spoken = time.monotonic()
            print(text, file=sys.stderr, flush=True)
