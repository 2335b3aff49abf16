"""A model measured by lm-evaluation-harness: what ``dape harness`` does. Torch and lm-eval wait until it runs."""

import importlib.util
import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.actions.model_folder import model_type
from dape.actions.model_text import model_corpus
from dape.actions.running import check_counts
from dape.errors import UsageError
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
class HarnessOptions:
    """Everything that can be measured."""

    model: Path
    """Folder of the model, as `dape export` or save_pretrained writes it."""
    choices: tuple[Path, ...] = ()
    """Files of multiple-choice questions, one JSON object with question, choices and answer (from 0) per line."""
    tests: tuple[str, ...] = ()
    """Generated tests by name, or a set: core, ruler, all (docs/probe.md); questions in words of three letters."""
    symbols: tuple[int, ...] = (64,)
    """Of `tests`: words of a question; the tokens of a word depend on the tokenizer."""
    samples: int = 100
    """Of `tests`: questions of each test at each number of words."""
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
    """Of `text`: scored tokens at the end of each window."""
    windows: int = 256
    """Of `text`: windows, the same number at every length."""
    reach: int | None = None
    """Of `text`: tokens that fit before every place where a window ends, whatever the lengths; by default it follows
    from the text: 32768, or about half of a shorter text. Only windows of one reach score the same tokens."""
    rolling: bool = False
    """Of `text`: also lm-eval's own rolling perplexity, in windows that do not overlap."""
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


def harness(options: HarnessOptions) -> "list[Row]":
    """Measure a model; the rows of everything. What is measured is kept in ``out`` at once."""
    _check(options)
    from dape.hf.harness.questions import read_questions

    questions = [read_questions(path) for path in options.choices]  # before anything slow
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
        raise UsageError("`rolling` measures a text: give `text` too")
    if options.include is not None and not options.include.is_dir():
        raise UsageError(f"`include` {options.include}: is not a folder")
    check_counts(**{name: getattr(options, name) for name in ("last_k", "windows", "limit", "batch", "samples")})
    if options.lengths and min(options.lengths) < 1:
        raise UsageError(f"`lengths` must be positive, got {min(options.lengths)}")
    if options.out is not None:
        check_writable_folder(options.out, "`out`")
        if (options.out / ROWS).exists():
            check_rows_file(options.out / ROWS, "`out`")


def _measure(options: HarnessOptions, questions: "list[Questions]", device: Any) -> "list[Row]":
    """Everything that can be wrong with the tasks shows before anything is computed."""
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
    _tell_window(subject, lengths)
    rows: list[Row] = []
    for length, selections in plan.items():
        for selected in selections:
            new, results = measure(subject, selected, length=length, batch=options.batch, limit=options.limit)
            rows += new
            _keep(
                options.out,
                new,
                results,
                f"{next(iter(selected.groups or selected.tasks))}-{length}".replace(os.sep, "_"),
            )
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
        raise UsageError(f"two tasks are called {', '.join(twice)}: measure them one after the other, or rename a file")


def _tell_window(subject: "Subject", lengths: tuple[int, ...]) -> None:
    own = getattr(subject.model.config, "max_position_embeddings", None)
    told = ", ".join(map(str, lengths))
    print(f"{subject.run}: {subject.method}{f' ({subject.variant})' if subject.variant else ''}")
    print(
        f"window: {told} tokens; max_position_embeddings of the model, where lm-eval alone would cut: {own}", flush=True
    )


def _keep(out: Path | None, rows: "list[Row]", results: dict[str, Any], name: str) -> None:
    """At once: what is measured is not lost if a later task fails."""
    from dape.results.records import append_rows

    if out is None:
        return
    (out / RESULTS).mkdir(parents=True, exist_ok=True)
    append_rows(out / ROWS, rows)
    date = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S.%f")
    write_text(out / RESULTS / f"{name}-{date}.json", json.dumps(results, indent=2) + "\n")
