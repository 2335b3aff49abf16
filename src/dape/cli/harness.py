"""``dape harness``: a model measured by lm-evaluation-harness. Imports torch and lm-eval only when it runs."""

import importlib.util
import json
import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from dape.actions.model_folder import model_type
from dape.actions.model_text import model_corpus
from dape.cli.console import open_console
from dape.cli.offline import use_offline
from dape.errors import UsageError
from dape.extras import check_transformers
from dape.files import check_writable_folder, write_text
from dape.results.records import check_rows_file
from dape.training.device import set_threads, use_device

if TYPE_CHECKING:
    from dape.data.store import Corpus
    from dape.hf.harness.questions import Questions
    from dape.hf.harness.run import Subject
    from dape.hf.harness.tasks import Selected
    from dape.results.records import Row

ROWS, RESULTS = "rows.jsonl", "lm-eval"


@dataclass(frozen=True, kw_only=True)
class Harness:
    """Measure a model with lm-evaluation-harness: questions, text, or its own tasks.

    MODEL is a folder of the transformers library with its tokenizer: one of `dape export`, or any other, into which
    --adapter puts a DAPE adapter. The window is always the one of --lengths: on its own lm-eval cuts texts at
    max_position_embeddings, without a word. Needs the extra harness; nothing is downloaded.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Folder of the model, as `dape export` or save_pretrained writes it."""
    choices: tuple[Path, ...] = ()
    """Files of multiple-choice questions, one JSON object with question, choices and answer (from 0) per line."""
    text: tuple[str, ...] = ()
    """Texts to measure perplexity on (their held-out part), as for `dape eval --data`."""
    tasks: tuple[str, ...] = ()
    """Tasks or groups of lm-eval, by name, pattern or YAML file; their data must be on this machine."""
    include: Path | None = None
    """Folder of further tasks, as YAML files of lm-eval."""
    adapter: Path | None = None
    """Folder of a DAPE adapter for this model, as `dape extend` writes it."""
    lengths: tuple[int, ...] = ()
    """Windows in tokens, everything measured at each; by default the model's own max_position_embeddings."""
    last_k: int = 256
    """Of --text: scored tokens at the end of each window."""
    windows: int = 256
    """Of --text: windows, the same number at every length."""
    reach: int | None = None
    """Of --text: tokens that fit before every place where a window ends, whatever the lengths; by default it follows
    from the text: 32768, or about half of a shorter text. Only windows of one reach score the same tokens."""
    rolling: bool = False
    """Of --text: also lm-eval's own rolling perplexity, in windows that do not overlap."""
    limit: int | None = None
    """Only the first questions, windows or documents of each task."""
    batch: int = 1
    """Texts at a time. More are padded, which encodings that stretch with the text (pi, yarn) do notice."""
    out: Path | None = None
    """Folder for rows.jsonl, which is appended to, and for lm-eval's own results as JSON."""
    device: str = "auto"
    """Where to compute: cpu, cuda, ...; auto takes a GPU if there is one."""
    threads: int | None = None
    """Threads of torch on the CPU; None leaves the choice to torch."""


def run(config: Harness) -> int:
    check(config)
    use_offline()
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    from dape.hf.harness.questions import read_questions

    questions = [read_questions(path) for path in config.choices]  # before anything slow
    device = use_device(config.device)
    set_threads(config.threads)
    return _measure(config, questions, device)


def check(config: Harness) -> None:
    if importlib.util.find_spec("lm_eval") is None or importlib.util.find_spec("transformers") is None:
        raise UsageError("dape harness needs lm-evaluation-harness: pip install 'dape[harness]'")
    check_transformers("dape harness")
    model_type(config.model)
    if not (config.choices or config.text or config.tasks):
        raise UsageError("nothing to measure: give --choices FILE, --text TEXT or --tasks NAME")
    if config.rolling and not config.text:
        raise UsageError("--rolling measures a text: give --text too")
    if config.include is not None and not config.include.is_dir():
        raise UsageError(f"--include {config.include}: is not a folder")
    for name in ("last_k", "windows", "limit", "batch"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if config.lengths and min(config.lengths) < 1:
        raise UsageError(f"--lengths must be positive, got {min(config.lengths)}")
    if config.out is not None:
        check_writable_folder(config.out, "--out")
        if (config.out / ROWS).exists():
            check_rows_file(config.out / ROWS, "--out")


def _measure(config: Harness, questions: "list[Questions]", device: Any) -> int:
    """Everything that can be wrong with the tasks shows before anything is computed."""
    from dape.hf.harness.run import measure, open_subject
    from dape.hf.harness.tasks import choices_task, named_tasks

    corpora = [model_corpus(spec, config.model, "text") for spec in config.text]
    named = named_tasks(config.tasks, config.include) if config.tasks else []
    subject = open_subject(config.model, config.adapter, device)
    lengths = tuple(sorted(set(config.lengths))) or (_own_length(subject),)
    plan = {
        length: [*(choices_task(q) for q in questions), *_texts(config, corpora, length), *named] for length in lengths
    }
    _check_names(plan[lengths[0]])
    _tell_window(subject, lengths)
    rows: list[Row] = []
    for length, selections in plan.items():
        for selected in selections:
            new, results = measure(subject, selected, length=length, batch=config.batch, limit=config.limit)
            rows += new
            _keep(
                config.out,
                new,
                results,
                f"{next(iter(selected.groups or selected.tasks))}-{length}".replace(os.sep, "_"),
            )
    _print(rows)
    _tell_windows(config, rows)
    if config.out is not None:
        print(f"appended {len(rows)} rows to {config.out / ROWS}, lm-eval's own results are in {config.out / RESULTS}")
    return 0


def _texts(config: Harness, corpora: "list[Corpus]", length: int) -> "list[Selected]":
    from dape.hf.harness.tasks import last_k_task, rolling_task

    found = [last_k_task(c, length, k=config.last_k, windows=config.windows, reach=config.reach) for c in corpora]
    return found + [rolling_task(c) for c in corpora if config.rolling]


def _own_length(subject: "Subject") -> int:
    length = getattr(subject.model.config, "max_position_embeddings", None)
    if not length:
        raise UsageError("the model's config.json has no max_position_embeddings: give --lengths")
    return length


def _check_names(selections: "list[Selected]") -> None:
    names = [name for selected in selections for name in selected.tasks]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"two tasks are called {', '.join(twice)}: measure them one after the other, or rename a file")


def _tell_window(subject: "Subject", lengths: tuple[int, ...]) -> None:
    own = getattr(subject.model.config, "max_position_embeddings", None)
    told = ", ".join(map(str, lengths))
    print(f"{subject.run}: {subject.method}{f' ({subject.variant})' if subject.variant else ''}")
    print(
        f"window: {told} tokens; max_position_embeddings of the model, where lm-eval alone would cut: {own}", flush=True
    )


def _tell_windows(config: Harness, rows: "list[Row]") -> None:
    for name, found in {row.extra["task"]: row.windows for row in rows if row.windows is not None}.items():
        if found < min(config.windows, config.limit or config.windows):
            print(f"{name}: the held-out text has room for {found} windows only, not {config.windows}")


def _keep(out: Path | None, rows: "list[Row]", results: dict[str, Any], name: str) -> None:
    """At once: what is measured is not lost if a later task fails."""
    from dape.results.records import append_rows

    if out is None:
        return
    (out / RESULTS).mkdir(parents=True, exist_ok=True)
    append_rows(out / ROWS, rows)
    date = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S.%f")
    write_text(out / RESULTS / f"{name}-{date}.json", json.dumps(results, indent=2) + "\n")


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
    open_console().print(table)
    for (task, length), cut in {(r.extra["task"], r.length): r.extra.get("cut", 0) for r in rows}.items():
        if cut:
            print(f"{task}: {cut} texts were longer than {length} tokens and lost their beginning", file=sys.stderr)
