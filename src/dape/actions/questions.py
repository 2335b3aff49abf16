"""``dape probe CHECKPOINT``: ask a trained language model about what it has read."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.actions.fields import OnThreads
from dape.actions.progress import ProgressLine
from dape.errors import UsageError
from dape.files import check_writable_file
from dape.results.records import append_rows, check_rows_file
from dape.tasks.recall.config import DEPTHS, Task, TextConfig, doublings, given
from dape.training.checks import check_reach
from dape.training.device import set_threads, use_device

if TYPE_CHECKING:
    from dape.evaluation.answers import Predict
    from dape.evaluation.perplexity import Subject
    from dape.evaluation.questions import TextTask
    from dape.results.records import Row

TASKS: tuple[Task, ...] = ("recall", "passkey")


@dataclass(frozen=True, kw_only=True)
class QuestionOptions(OnThreads):
    """Arguments of :func:`ask`."""

    tasks: tuple[Task, ...] = TASKS
    """What to ask for."""
    lengths: tuple[int, ...] = ()
    """Tokens of context; by default the training length and its doublings up to 32 times."""
    depths: tuple[float, ...] = DEPTHS
    """Position of the answer in the text: 0 is the beginning, 1 the end."""
    samples: int | None = None
    """Texts per length and depth; by default 64."""
    pairs: int | None = None
    """Pairs in a text; by default 4."""
    seed: int = 0
    """Seed of keys, words and positions."""
    data: str | None = None
    """Text to insert the answer into (its held-out part); by default what the model was trained on."""
    json: Path | None = None
    """File to append the rows to."""
    figure: Path | None = None
    """File that :func:`draw` writes."""


def ask(checkpoint: Path, options: QuestionOptions, found: "Callable[[Sequence[Row]], None]") -> None:
    """Ask a model; ``found`` is called with the rows of each task, length and depth as soon as they are measured."""
    settings = TextConfig(
        tasks=tuple(dict.fromkeys(options.tasks)),
        lengths=options.lengths or (1,),  # the default lengths depend on the model, which is opened later
        depths=options.depths,
        seed=options.seed,
        **given(samples=options.samples, pairs=options.pairs),
    )
    settings.check()
    if options.json is not None:
        check_rows_file(options.json, "`json`")
    for task in settings.tasks if options.figure is not None else ():
        check_writable_file(_figure_path(options, task).with_suffix(".png"), "`figure`")
    for new in _measured(options, settings, checkpoint):
        if options.json is not None:
            append_rows(options.json, new)
        found(new)


def draw(rows: "Sequence[Row]", options: QuestionOptions, task: Task) -> list[Path]:
    """Draw accuracy of one task by length and depth; returns the files."""
    from dape.report.drawing import save_figure
    from dape.report.heat_maps import heat_map_figure

    return save_figure(heat_map_figure(rows, title=task), _figure_path(options, task))


def _figure_path(options: QuestionOptions, task: Task) -> Path:
    assert options.figure is not None
    path = options.figure.with_suffix("") if options.figure.suffix in (".png", ".svg") else options.figure
    return path if len(set(options.tasks)) == 1 else path.with_name(f"{path.name}-{task}")


def _measured(options: QuestionOptions, settings: TextConfig, checkpoint: Path) -> "Iterator[list[Row]]":
    from dape.evaluation.opening import open_checkpoint

    opened = open_checkpoint(checkpoint)
    corpus = opened.corpus(options.data)
    lengths = options.lengths or _possible_lengths(settings, corpus, opened.settings.train_length)
    settings = replace(settings, lengths=tuple(sorted(lengths)))
    tasks = _tasks(settings, corpus)
    device = use_device(options.device)
    set_threads(options.threads)
    check_reach(opened.settings, max(lengths))
    from dape.evaluation.answers import predictor

    model, subject = opened.model(device), opened.subject(corpus)
    subject = replace(subject, extra={**subject.extra, "filler": f"held-out text of {corpus.name}"})
    yield from _cells(tasks, predictor(model), model, subject)


def _possible_lengths(settings: TextConfig, corpus: Any, train_length: int) -> tuple[int, ...]:
    """The training length and its doublings, as far as every task fits and there is enough text."""
    shortest = max(task.shortest() for task in _text_tasks(settings, corpus))
    possible = tuple(n for n in doublings(train_length) if shortest <= n <= len(corpus.validation))
    if not possible:
        raise UsageError(
            f"a question takes at least {shortest} tokens, and the held-out text has {len(corpus.validation)}: neither "
            "the training length nor any of its doublings is possible; choose `lengths`, or `data` with more text"
        )
    return possible


def _text_tasks(settings: TextConfig, corpus: Any) -> "list[TextTask]":
    from dape.evaluation.questions import TextTask

    return [TextTask(task, settings, corpus.validation, corpus.tokenizer) for task in settings.tasks]


def _tasks(settings: TextConfig, corpus: Any) -> "list[TextTask]":
    """The tasks, checked against the lengths and the text."""
    tasks = _text_tasks(settings, corpus)
    for task in tasks:
        if min(settings.lengths) < task.shortest():
            raise UsageError(
                f"length {min(settings.lengths)} is too short for the task {task.task}, whose statements and question "
                f"alone take {task.shortest()} tokens; use `lengths` of at least {task.shortest()}"
            )
    if max(settings.lengths) > len(corpus.validation):
        raise UsageError(
            f"the held-out text of {corpus.name} has {len(corpus.validation)} tokens, too few to fill length "
            f"{max(settings.lengths)}; use shorter `lengths`, or more text with `data`"
        )
    return tasks


def _cells(tasks: "Sequence[TextTask]", predict: "Predict", model: Any, subject: "Subject") -> "Iterator[list[Row]]":
    """Yield the rows of each task, length and depth, short texts first."""
    from dape.evaluation.answers import as_rows, score
    from dape.evaluation.perplexity import batch_size

    total, done = sum(len(task.config.depths) * sum(task.config.lengths) for task in tasks), 0
    with ProgressLine() as line:
        for task in tasks:
            of_task = replace(subject, data_hash=task.data_hash(subject.data_hash))
            extra = {"sample_seed": task.config.seed, "statements": task.statements}
            for length in task.config.lengths:
                for depth in task.config.depths:
                    line.show(f"{task.task}: length {length}, depth {depth:g}", done / total)
                    done += length
                    scores = score(predict, task.samples(length, depth), batch=batch_size(model, length))
                    yield as_rows(scores, of_task, task=task.task, length=length, depth=depth, extra=extra)
