"""Longer reach for a model that exists, by training an adapter alone: ``dape.extend`` and ``dape extend``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.actions.extend_folder import check_out, settings_of, take_out
from dape.actions.extend_plan import (
    ExtendOptions,
    Rotation,
    check_table,
    corpus_of,
    evaluation_of,
    length_of,
    lessons_of,
    open_host,
    own_encoding,
    table_of,
    tuning_of,
)
from dape.actions.extend_work import (
    ADAPTER,
    AFTER,
    BEFORE,
    UNTUNED,
    adapter_factor,
    is_measured_untuned,
    is_untrained,
    measured,
    put_in,
    train,
)
from dape.actions.found import Found
from dape.actions.model_folder import model_type
from dape.actions.train import name_of
from dape.errors import check_counts
from dape.evaluation.config import EvalConfig
from dape.extras import check_transformers
from dape.files import check_writable_folder, locked, write_text
from dape.training.checks import check_encoding

if TYPE_CHECKING:
    from dape.data.store import Corpus
    from dape.results.records import Row

FILES = (ADAPTER, "results.jsonl", "table.md", "curves.png", "curves.svg")


@dataclass(frozen=True, kw_only=True)
class Extended(Found):
    """Perplexity without and with the adapter, and where the adapter lies."""

    adapter: Path
    """For ``dape.hf.load_adapter(model, folder)``."""
    finished: bool = True
    """False if it was asked to stop: there is no adapter yet, and the same call goes on."""


def extend(
    model: str | PathLike[str],
    *,
    data: "str | PathLike[str] | Corpus" = ExtendOptions.data,
    out: str | PathLike[str] = ExtendOptions.out,
    method: str = ExtendOptions.method,
    options: Mapping[str, Any] | None = None,
    rope: Rotation = ExtendOptions.rope,
    factor: float | None = None,
    train_length: int | None = None,
    length: int | None = None,
    steps: int = ExtendOptions.steps,
    batch: int = ExtendOptions.batch,
    lr: float = ExtendOptions.lr,
    seed: int = ExtendOptions.seed,
    lengths: Sequence[int] = (),
    last_k: int | None = None,
    windows: int = ExtendOptions.windows,
    reach: int | None = None,
    device: str = ExtendOptions.device,
    threads: int | None = None,
) -> Extended:
    """Train an adapter for a model in a folder, and measure what it gives; the model's own weights stay as they are.

    Needs the extra ``hf``. What is finished in ``out`` is not done again: an interrupted call goes on when it is made
    again. To put an adapter into a model that is in memory already and train it yourself, there is ``dape.hf.extend``.

    Args:
        model: folder of a model of the transformers library, as ``save_pretrained`` writes it. Nothing is downloaded.
        data: text to train and measure on: what ``dape.open_data`` takes, or what it returns.
        out: folder for the adapter and the results; it belongs to one model, one text and one choice of settings.
        method: DAPE on any additive bias (dape-alibi) or on none (dape-nope), the bias alone (kerple); or rerope or
            self-extend in place of the model's rotation, with nothing to train.
        options: of the encoding, such as ``{"hidden": 16}``.
        rope: the model's rotation under the adapter: ``yarn`` slows it down, ``keep``, ``remove``; ``auto`` is yarn
            where the model has a plain rotation.
        factor: with YaRN, for up to so many training lengths; by default the greatest of ``lengths``.
        train_length: the length the model was trained at; by default ``max_position_embeddings``.
        length: tokens per sequence while the adapter is trained; by default 4 training lengths.
        steps: of training.
        batch: sequences per step.
        lr: learning rate.
        seed: of training.
        lengths: to evaluate at; by default the training length and its doublings up to 32 times.
        last_k: scored tokens per window; by default 256, or the shortest length if that is less.
        windows: evaluation windows, the same at every length.
        reach: tokens that fit before every place where a window ends; by default it follows from the text.
        device: ``cpu``, ``cuda``, ...; ``auto`` takes a GPU if there is one.
        threads: of torch on the CPU.

    Returns:
        What was found (``.rows``, ``.table()``, ``.figure()``, ``.frame()``): the model itself, under YaRN before any
        training, with the adapter; and ``.adapter``, the folder for ``dape.hf.load_adapter``.

    Raises:
        TypeError: for a model that is no folder.
        ValueError: without the extra, for settings that cannot be meant, for a model that cannot hold an adapter, for
            a text that is too short, and for a folder that holds something else.

    Example::

        found = dape.extend("llama-folder", data="notes.txt", train_length=512, out="runs/longer")
        print(found.table())
        dape.hf.load_adapter(model, found.adapter)
    """
    if not isinstance(model, str | PathLike):
        raise TypeError(
            f"`model` must be a folder, not {type(model).__name__}; dape.hf.extend(model) puts an adapter into a model "
            "that is in memory"
        )
    return extend_with(
        ExtendOptions(
            model=Path(model),
            data=name_of(data),
            out=Path(out),
            method=method,
            options=dict(options or {}),
            rope=rope,
            factor=factor,
            train_length=train_length,
            length=length,
            steps=steps,
            batch=batch,
            lr=lr,
            seed=seed,
            lengths=tuple(lengths),
            last_k=last_k,
            windows=windows,
            reach=reach,
            device=device,
            threads=threads,
        )
    )


def extend_with(options: ExtendOptions) -> Extended:
    """What :func:`extend` does, with all options at once."""
    check_transformers("dape extend")
    _check(options)
    with locked(options.out):
        return _extend(options)


def _check(options: ExtendOptions) -> None:
    model_type(options.model)
    check_encoding(options.method, "method")
    check_counts(options, "train_length", "length", "windows", "last_k", "threads")
    check_writable_folder(options.out, "`out`")
    check_out(options, settings_of(options))


def _extend(options: ExtendOptions) -> Extended:
    """Everything that can be wrong shows before anything is measured or trained, and before ``out`` is taken."""
    from dape.training.device import set_threads, use_device

    device = use_device(options.device)
    set_threads(options.threads)
    model = open_host(options, device)
    length, table = length_of(options, model), table_of(model)
    evaluation, tuning = evaluation_of(options, length, table), tuning_of(options, length, table)
    evaluation.check()
    tuning.check()
    check_table(model, table, max(tuning.length, *evaluation.lengths))
    corpus = corpus_of(options, model)
    lessons = lessons_of(options, corpus, tuning, evaluation, length)
    take_out(options, corpus)
    measure = partial(measured, options, model, corpus, evaluation, length=length)
    rows = measure(BEFORE, method=own_encoding(model))
    put_in(options, model, length)
    if is_measured_untuned(options, model):
        # One factor for all lengths, as under the adapter; a factor for each length would cost less at short ones.
        rows += measure(UNTUNED, method="yarn", variant=f"untuned, factor {adapter_factor(model):g}")
    if not (options.out / ADAPTER).is_dir() and not train(options, model, lessons, tuning, corpus.hash):
        return _found(options, rows, evaluation, finished=False)
    variant, step = ("untrained", 0) if is_untrained(model) else ("adapter", options.steps)
    rows += measure(AFTER, method=options.method, variant=variant, step=step)
    return _found(options, rows, evaluation, finished=True)


def _found(options: ExtendOptions, rows: "list[Row]", evaluation: EvalConfig, *, finished: bool) -> Extended:
    """With its files, if there is an adapter."""
    from dape.report.figures import perplexity_figure, save_figure
    from dape.report.reproduction import labelled
    from dape.report.tables import markdown_table, terminal_table
    from dape.results.records import rows_text

    def terminal(rows: "list[Row]", width: int) -> list[Any]:
        return [terminal_table(labelled(rows), lengths=evaluation.lengths, width=width)]

    found = Extended(
        rows=rows,
        out=options.out,
        files=FILES if finished else (),
        adapter=options.out / ADAPTER,
        finished=finished,
        make_table=lambda rows: markdown_table(labelled(rows)),
        make_figure=lambda rows: perplexity_figure(labelled(rows)),
        make_terminal=terminal,
    )
    if finished:
        write_text(options.out / "results.jsonl", rows_text(rows))
        write_text(options.out / "table.md", found.table())
        save_figure(found.figure(), options.out / "curves")
    return found
