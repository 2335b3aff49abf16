"""``dape harness``: measure a model with lm-evaluation-harness. Imports torch and lm-eval only when it runs."""

import importlib.util
import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.actions.fields import OnThreads
from dape.actions.model_folder import model_type
from dape.actions.model_text import model_corpus
from dape.errors import UsageError, check_counts
from dape.extras import check_transformers, install_command
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
class HarnessOptions(OnThreads):
    """Arguments of :func:`harness`."""

    model: Path
    """Folder of the model, as `dape export` or save_pretrained writes it."""
    choices: tuple[Path, ...] = ()
    """Files of multiple-choice questions: per line a JSON object with question, choices and answer (counted from 0)."""
    tests: tuple[str, ...] = ()
    """Generated tests by name, or a set: core, ruler, all (docs/probe.md). Questions consist of words of three
    letters."""
    symbols: tuple[int, ...] = (64,)
    """With `tests`: words per question. The tokenizer decides how many tokens a word has."""
    samples: int = 100
    """With `tests`: questions of each test at each number of words."""
    text: tuple[str, ...] = ()
    """Texts to measure perplexity on (their held-out part), as for `dape eval --data`."""
    tasks: tuple[str, ...] = ()
    """Tasks or groups of lm-eval, by name, pattern or YAML file; their data must be on this machine."""
    include: Path | None = None
    """Folder with more tasks, as YAML files of lm-eval."""
    adapter: Path | None = None
    """Folder of a DAPE adapter for this model, as `dape extend` writes it."""
    lengths: tuple[int, ...] = ()
    """Window lengths in tokens; everything is measured at each. By default the model's max_position_embeddings."""
    last_k: int = 256
    """With `text`: scored tokens at the end of each window."""
    windows: int = 256
    """With `text`: windows per length."""
    reach: int | None = None
    """With `text`: windows of every length end only where at least this many tokens come before; by default 32768, or
    about half of a shorter text. Results with the same reach score the same tokens."""
    rolling: bool = False
    """With `text`: also measure lm-eval's rolling perplexity, in windows that do not overlap."""
    limit: int | None = None
    """Use only this many questions, windows or documents of each task."""
    batch: int = 1
    """Texts at a time. Shorter ones are padded, which changes the results of encodings that depend on the length of the
    text (pi, yarn)."""
    out: Path | None = None
    """Folder for results: rows are appended to rows.jsonl, and lm-eval's own results are written as JSON."""


def harness(options: HarnessOptions) -> "list[Row]":
    """Measure a model and return all rows. The results of each task are written to ``out`` at once."""
    _check(options)
    from dape.hf.harness.questions import read_questions

    questions = [read_questions(path) for path in options.choices]  # first: errors in the files show at once
    if options.tests:
        from dape.hf.harness.generated import generated_questions

        questions += generated_questions(options.tests, options.symbols, options.samples)
    device = use_device(options.device)
    set_threads(options.threads)
    return _measure(options, questions, device)


def _check(options: HarnessOptions) -> None:
    if importlib.util.find_spec("lm_eval") is None or importlib.util.find_spec("transformers") is None:
        raise UsageError(f"dape harness needs lm-evaluation-harness: {install_command('harness')}")
    check_transformers("dape harness")
    model_type(options.model)
    if not (options.choices or options.tests or options.text or options.tasks):
        raise UsageError("nothing to measure: give `choices` FILE, `tests` NAME, `text` TEXT or `tasks` NAME")
    if options.rolling and not options.text:
        raise UsageError("`rolling` measures a text: also give `text`")
    if options.include is not None and not options.include.is_dir():
        raise UsageError(f"`include` {options.include}: is not a folder")
    check_counts(options, "last_k", "windows", "limit", "batch", "samples")
    if options.lengths and min(options.lengths) < 1:
        raise UsageError(f"`lengths` must be positive, got {min(options.lengths)}")
    if options.out is not None:
        check_writable_folder(options.out, "`out`")
        if (options.out / ROWS).exists():
            check_rows_file(options.out / ROWS, "`out`")


def _measure(options: HarnessOptions, questions: "list[Questions]", device: Any) -> "list[Row]":
    """Build the tasks of all lengths first, so that their errors show before anything is computed."""
    from dape.hf.harness.run import measure, open_subject
    from dape.hf.harness.tasks import choices_task, named_tasks

    corpora = [model_corpus(spec, options.model, "text") for spec in options.text]
    named = named_tasks(options.tasks, options.include) if options.tasks else []
    subject = open_subject(options.model, options.adapter, device)
    lengths = tuple(sorted(set(options.lengths))) or (_own_length(subject),)
    plan = {
        length: [*(choices_task(q) for q in questions), *_texts(options, corpora, length), *named] for length in lengths
    }
    _check_names(plan[lengths[0]])
    _print_window(subject, lengths)
    rows: list[Row] = []
    for length, selections in plan.items():
        for selected in selections:
            new, results = measure(subject, selected, length=length, batch=options.batch, limit=options.limit)
            rows += new
            if options.out is not None:
                name = f"{next(iter(selected.groups or selected.tasks))}-{length}".replace(os.sep, "_")
                _append(options.out, new, results, name)
    return rows


def _texts(options: HarnessOptions, corpora: "list[Corpus]", length: int) -> "list[Selected]":
    from dape.hf.harness.tasks import last_k_task, rolling_task

    found = [last_k_task(c, length, k=options.last_k, windows=options.windows, reach=options.reach) for c in corpora]
    return found + [rolling_task(c) for c in corpora if options.rolling]


def _own_length(subject: "Subject") -> int:
    length = getattr(subject.model.config, "max_position_embeddings", None)
    if not length:
        raise UsageError("the model's config.json has no max_position_embeddings: give `lengths`")
    return length


def _check_names(selections: "list[Selected]") -> None:
    names = [name for selected in selections for name in selected.tasks]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"two tasks are called {', '.join(twice)}: measure them in two commands, or rename a file")


def _print_window(subject: "Subject", lengths: tuple[int, ...]) -> None:
    own = getattr(subject.model.config, "max_position_embeddings", None)
    print(f"{subject.run}: {subject.method}{f' ({subject.variant})' if subject.variant else ''}")
    print(
        f"window: {', '.join(map(str, lengths))} tokens; lm-eval alone would cut at the model's "
        f"max_position_embeddings: {own}",
        flush=True,
    )


def _append(out: Path, rows: "list[Row]", results: dict[str, Any], name: str) -> None:
    from dape.results.records import append_rows

    (out / RESULTS).mkdir(parents=True, exist_ok=True)
    append_rows(out / ROWS, rows)
    date = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S.%f")
    write_text(out / RESULTS / f"{name}-{date}.json", json.dumps(results, indent=2) + "\n")
