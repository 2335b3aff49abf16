"""``dape.evaluate`` and ``dape eval``: perplexity of a trained model by length."""

import json as texts
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.actions.found import Found
from dape.actions.progress import ProgressLine, window_watch
from dape.actions.train import Trained, name_of, own_device
from dape.errors import UsageError
from dape.evaluation.config import EvalConfig, Mode, Protocol, evaluation_of
from dape.files import scratch
from dape.machine import peak_bytes
from dape.models.config import DecoderConfig
from dape.results.records import Row, append_rows, check_rows_file, read_rows
from dape.training.checks import check_reach
from dape.training.device import set_threads, use_device
from dape.training.interrupt import stop_with
from dape.training.launch import ProcessesFailedError, check_processes, in_group, is_first, launcher, run_processes
from dape.verbosity import tell

if TYPE_CHECKING:
    from dape.data.store import Corpus
    from dape.evaluation.opening import Opened

Watch = Callable[[int, int, int], None]
"""Called with the length, the number of finished windows and the number of all windows."""


def evaluate(
    run: str | Path | Trained,
    *,
    lengths: Sequence[int] = (),
    last_k: int | None = None,
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
        run: a run's folder (its newest checkpoint), one checkpoint, or the result of ``dape.train``.
        lengths: tokens of context to evaluate at; by default the training length and its doublings up to 32 times, as
            far as the text and the encoding allow.
        last_k: scored tokens per window; by default 256, or the shortest length if that is less.
        windows: windows per length.
        protocol: ``last_k``, ``full``, ``nonoverlap`` or ``per_position``; see :class:`EvalConfig`.
        mode: ``packed``, windows may run across documents, or ``same_document``.
        reach: windows of every length end only where at least this many tokens come before; by default 32768, or about
            half of a shorter text.
        data: text to evaluate on (its held-out part); by default what the model was trained on.
        json: file to append the rows to.
        device: ``cpu``, ``cuda``, ...; ``auto`` takes a GPU if there is one.
        threads: torch threads on the CPU.
        processes: processes to start on this machine. They share the rows of every window, so that each needs less
            memory. Under torchrun, the processes that it has started share them. The results are those of one process.
        watch: called with the length, the number of finished windows and of all windows; by default a progress line
            is shown. Not called with ``processes``.
        found: called with the rows of each length as soon as they are measured; with ``processes``, at the end.

    Returns:
        The rows, one per length (``per_position``: one per doubling of the position).

    Raises:
        ValueError: for lengths that the text or the encoding does not support, and if ``run`` is not a run.

    Example::

        found = dape.evaluate("runs/dape-kerple-64-seed0", lengths=(64, 512, 2048), last_k=64)
        print(found.table())
    """
    path = None if json is None else Path(json)
    if path is not None:
        check_rows_file(path, "`json`")
    from dape.evaluation.opening import open_checkpoint

    opened = open_checkpoint(run.folder if isinstance(run, Trained) else Path(run))
    given = {"windows": windows, "protocol": protocol, "mode": mode, "reach": reach}
    settings = evaluation_of(opened.settings.train_length, lengths, last_k=last_k, **given)
    settings.check()
    check_processes(processes)
    if not lengths:
        possible = _possible(settings, opened.settings, opened.corpus(data))
        settings = evaluation_of(opened.settings.train_length, possible, last_k=last_k, **given)
        settings.check()
    rows: list[Row] = []
    with ProgressLine() as line:
        for new in _measured(opened, data, settings, device, threads, processes, watch, line):
            if path is not None and is_first():
                append_rows(path, new)
            rows += new
            found(new)
    return Found(rows=rows)


def _measured(
    opened: "Opened",
    data: "str | Path | Corpus | None",
    settings: EvalConfig,
    device: str,
    threads: int | None,
    processes: int,
    watch: Watch | None,
    line: ProgressLine,
) -> Iterator[list[Row]]:
    """Yield the rows of each length, measured by this process or by several."""
    if processes > 1 and not in_group():
        given = {"run": str(opened.where), "data": None if data is None else name_of(data), **asdict(settings)}
        yield from _launched({**given, "device": device, "threads": threads}, processes)
        return
    if in_group():
        stop_with(launcher())
    torch_device = use_device(own_device(device))
    set_threads(threads)
    yield from _measured_here(opened, data, settings, torch_device, watch or window_watch(line, settings.lengths))


def _launched(given: dict[str, Any], processes: int) -> Iterator[list[Row]]:
    """Make the same call in several processes. Yields the measured rows even if a process fails."""
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


def _measured_here(
    opened: "Opened", data: "str | Path | Corpus | None", settings: EvalConfig, device: Any, watch: Watch
) -> Iterator[list[Row]]:
    """Yield the rows of each length. Each process of a group calls this."""
    from dape.evaluation.context_parallel import SharedWindows
    from dape.evaluation.perplexity import as_rows, measure
    from dape.training.parallel import joined

    with joined(None, device) as group:
        group.check_same(run=str(opened.where), data=None if data is None else name_of(data), **asdict(settings))
        if not group.alone:  # the first process prepares the text, then the others open it
            group.together(lambda: opened.corpus(data) if group.is_first else None)
        corpus = group.together(lambda: opened.corpus(data))
        group.check_same(text=corpus.hash)
        model = group.together(lambda: opened.model(device))
        subject, reader = opened.subject(corpus), None if group.alone else SharedWindows(group)
        watch = watch if group.is_first else lambda length, done, total: None
        lengths = measure(model, corpus.validation, settings, watch=watch, reader=reader)
        while (measured := group.together(lambda: next(lengths, None), ValueError)) is not None:
            peaks = [float(text) for text in group.gather(str(peak_bytes()))]
            extra = {**subject.extra, "processes": group.world, "peak_memory_mb": round(max(peaks) / 1e6)}
            yield as_rows(measured, replace(subject, extra=extra), settings)


def _possible(settings: EvalConfig, model: DecoderConfig, corpus: "Corpus") -> tuple[int, ...]:
    """The default lengths for which there is text and which the encoding supports.

    The first length is always included: if it is impossible, its error says why.
    """
    from dape.data.windows import default_reach

    reach = settings.reach or default_reach(corpus.validation, same_document=settings.mode == "same_document")
    first, *longer = settings.lengths
    possible = (first, *(n for n in longer if n <= reach and _supports(model, n)))
    if left := [n for n in longer if n not in possible]:
        why = f"the reach is {reach} tokens" if left[0] > reach else f"{model.encoding} ends before"
        tell(f"note: lengths from {left[0]} on are left out, as {why}")
    return possible


def _supports(model: DecoderConfig, length: int) -> bool:
    try:
        check_reach(model, length)
    except UsageError:
        return False
    return True
