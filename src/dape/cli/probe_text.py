"""``dape probe CHECKPOINT``: questions to a language model; table, rows and figures. Imports torch when it runs."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.cli.console import open_console
from dape.errors import UsageError
from dape.files import check_writable_file
from dape.results.records import check_rows_file
from dape.tasks.recall.config import Task, TextConfig, doublings, given
from dape.training.checks import check_reach
from dape.training.device import set_threads, use_device

if TYPE_CHECKING:
    from dape.cli.probe import Probe
    from dape.evaluation.answers import Predict
    from dape.evaluation.perplexity import Subject
    from dape.evaluation.questions import TextTask
    from dape.results.records import Row


def ask(config: "Probe", checkpoint: Path) -> int:
    settings = TextConfig(
        tasks=tuple(dict.fromkeys(config.tasks)),
        lengths=config.lengths or (1,),  # by default known when the model is
        depths=config.depths,
        seed=config.seed,
        **given(samples=config.samples, pairs=config.pairs),
    )
    settings.check()
    if config.json is not None:
        check_rows_file(config.json, "--json")
    for task in settings.tasks if config.figure is not None else ():
        check_writable_file(figure_path(config, task).with_suffix(".png"), "--figure")
    device = use_device(config.device)
    set_threads(config.threads)
    return _measure(config, settings, checkpoint, device)


def _measure(config: "Probe", settings: TextConfig, checkpoint: Path, device: Any) -> int:
    from dape.evaluation.answers import predictor
    from dape.evaluation.opening import open_corpus, subject_of
    from dape.results.records import append_rows
    from dape.training import checkpoint as checkpoints

    where = checkpoints.find(checkpoint)
    description = checkpoints.describe(where)
    corpus = open_corpus(config.data, where, description)
    lengths = config.lengths or _possible_lengths(settings, corpus, description.model.train_length)
    settings = replace(settings, lengths=tuple(sorted(lengths)))
    tasks = _tasks(settings, corpus)
    check_reach(description.model, max(lengths))
    model = checkpoints.load_model(where, description, device).eval()
    subject = subject_of(where, description, corpus)
    subject = replace(subject, extra={**subject.extra, "filler": f"held-out text of {corpus.name}"})
    rows: list[Row] = []
    try:
        for new in _cells(tasks, predictor(model), model, subject):
            if config.json is not None:
                append_rows(config.json, new)
            rows += new
    finally:
        _report_text(rows, settings, config)
    return 0


def _possible_lengths(settings: TextConfig, corpus: Any, train_length: int) -> tuple[int, ...]:
    """Doublings of the training length with room for every task, and for which there is text."""
    shortest = max(task.shortest() for task in _text_tasks(settings, corpus))
    possible = tuple(n for n in doublings(train_length) if shortest <= n <= len(corpus.validation))
    if not possible:
        raise UsageError(
            f"a text must have at least {shortest} tokens, and the held-out text has {len(corpus.validation)}: none of "
            f"the training length and its doublings is possible; choose --lengths, or --data with more text"
        )
    return possible


def _text_tasks(settings: TextConfig, corpus: Any) -> "list[TextTask]":
    from dape.evaluation.questions import TextTask

    return [TextTask(task, settings, corpus.validation, corpus.tokenizer) for task in settings.tasks]


def _tasks(settings: TextConfig, corpus: Any) -> "list[TextTask]":
    """With room in every length."""
    tasks = _text_tasks(settings, corpus)
    for task in tasks:
        if min(settings.lengths) < task.shortest():
            raise UsageError(
                f"length {min(settings.lengths)} is too short for the task {task.task}, whose statements and question "
                f"alone take {task.shortest()} tokens; use --lengths of at least {task.shortest()}"
            )
    if max(settings.lengths) > len(corpus.validation):
        raise UsageError(
            f"the held-out text of {corpus.name} has {len(corpus.validation)} tokens, too few to fill length "
            f"{max(settings.lengths)}; use shorter --lengths, or more text with --data"
        )
    return tasks


def _cells(tasks: "Sequence[TextTask]", predict: "Predict", model: Any, subject: "Subject") -> "Iterator[list[Row]]":
    """Rows of one task, length and depth after the other, short texts first."""
    from dape.evaluation.answers import as_rows, score
    from dape.evaluation.perplexity import batch_size

    with Cells(sum(len(task.config.lengths) * len(task.config.depths) for task in tasks)) as progress:
        for task in tasks:
            of_task = replace(subject, data_hash=task.data_hash(subject.data_hash))
            extra = {"sample_seed": task.config.seed, "statements": task.statements}
            for length in task.config.lengths:
                for depth in task.config.depths:
                    progress.show(f"{task.task}: length {length}, depth {depth:g}")
                    scores = score(predict, task.samples(length, depth), batch=batch_size(model, length))
                    yield as_rows(scores, of_task, task=task.task, length=length, depth=depth, extra=extra)


class Cells:
    """A line on the terminal that says what is measured; nothing where there is none."""

    def __init__(self, total: int) -> None:
        self._done, self._total = 0, total
        self._shown = sys.stderr.isatty()

    def __enter__(self) -> "Cells":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def show(self, what: str) -> None:
        self._done += 1
        if self._shown:
            print(f"\r\033[K{what} ({self._done}/{self._total})", end="", file=sys.stderr, flush=True)


def figure_path(config: "Probe", task: Task) -> Path:
    assert config.figure is not None
    path = config.figure.with_suffix("") if config.figure.suffix in (".png", ".svg") else config.figure
    return path if len(set(config.tasks)) == 1 else path.with_name(f"{path.name}-{task}")


def _report_text(rows: "list[Row]", settings: TextConfig, config: "Probe") -> None:
    from dape.report.recall import text_table

    for task in settings.tasks:
        of_task = [row for row in rows if row.protocol == task]
        if not of_task:
            continue
        open_console().print(text_table(of_task))
        if config.figure is not None:
            from dape.report.drawing import save_figure
            from dape.report.heat_maps import heat_map_figure

            figure = heat_map_figure(of_task, title=task)
            print(f"wrote {' and '.join(map(str, save_figure(figure, figure_path(config, task))))}")
    if config.json is not None and rows:
        print(f"appended {len(rows)} rows to {config.json}")
