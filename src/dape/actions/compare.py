"""Train encodings under the same conditions, test them long: ``dape.compare`` and ``dape compare``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.actions.found import Found
from dape.actions.running import begin_and_run
from dape.actions.settings import settings
from dape.errors import UsageError, check_counts
from dape.evaluation.config import EvalConfig, Mode, evaluation_of
from dape.experiments.compare import Comparison, evaluation_in, model_for, windows_in
from dape.experiments.executor import Executor
from dape.files import locked, write_text
from dape.models.config import DecoderConfig
from dape.results.numbers import count
from dape.training.checks import check_methods, check_model, check_reach
from dape.training.config import TrainConfig
from dape.verbosity import tell

if TYPE_CHECKING:
    from dape.data.store import Corpus
    from dape.results.records import Row

METHODS = ("rope", "alibi", "kerple", "fire", "dape-alibi", "dape-kerple", "dape-fire")
FIELD = (
    *("nope", "rope", "yarn", "dynamic", "proportional", "rerope", "self-extend", "logn-rope", "sink-rope"),
    *("t5", "alibi", "kerple", "fire", "fox", "inkling", "transformer-xl", "cope", "talking-heads", "multi-token"),
    *("dape-nope", "dape-rope", "dape-alibi", "dape-kerple", "dape-fire", "dape-fox", "dape-v2-kerple"),
)
"""One or more of every family: what adapts to content, what only has freedom in the distance, what neither."""
SETS = {"field": FIELD}
FILES = ("results.jsonl", "table.md", "summary.md", "curves.png", "curves.svg")


def compare(
    data: "str | Path | Corpus" = "stdlib",
    *,
    methods: Sequence[str] = METHODS,
    seeds: int = 1,
    lengths: Sequence[int] = (),
    last_k: int | None = None,
    windows: int | None = None,
    mode: Mode = "packed",
    reach: int | None = None,
    out: str | Path = "runs/compare",
    jobs: int | None = None,
    device: str = "auto",
    executor: Executor | None = None,
    preset: str = "tiny",
    model: DecoderConfig | None = None,
    train: TrainConfig | None = None,
    **changes: Any,
) -> Found:
    """Train each encoding for each seed with the same data in the same order, then test it at every length.

    What is finished in ``out`` is not done again: an interrupted comparison goes on, methods and seeds can be added.
    Runs are processes of their own; nothing has to be guarded by ``if __name__ == "__main__"``.

    Args:
        data: what ``dape.open_data`` takes, or what it returns.
        methods: names from ``dape.encodings()``; ``field`` stands for one or more of every family.
        seeds: runs per encoding; significance needs at least two, better five.
        lengths: to evaluate at; by default the training length and its doublings up to 32 times.
        last_k: scored tokens per window; by default 256, or the shortest length if that is less.
        windows: evaluation windows, the same at every length; by default 160, or as many as the comparison in ``out``
            was begun with.
        mode: ``packed``, windows may run across documents, or ``same_document``.
        reach: tokens that fit before every place where a window ends; by default it follows from the text.
        out: folder of the comparison.
        jobs: runs side by side; by default one per core, one on a GPU.
        device: ``cpu``, ``cuda``, ...; ``auto`` takes a GPU if there is one.
        executor: where runs are done; by default processes of this machine.
        preset: settings to begin with: tiny, small, 125m, 350m, 2.7b or 6.7b.
        model: all settings of the model at once, in place of the preset.
        train: all settings of training at once, likewise.
        **changes: single settings of :class:`~dape.models.config.DecoderConfig` and
            :class:`~dape.training.config.TrainConfig` in place of the preset's: ``steps=400``, ``layers=2``, ...

    Returns:
        What was found: ``.rows``, ``.table()``, ``.figure()``, ``.frame()``, ``.failures``.

    Raises:
        ValueError: for invalid settings, and for a folder that holds something else.

    Example::

        found = dape.compare("book.txt", methods=("alibi", "dape-alibi"), seeds=3, steps=200, out="runs/book")
        print(found.table())
    """
    if model is None or train is None:
        model, train = settings(preset, changes)
    methods, out = tuple(dict.fromkeys(name for word in methods for name in SETS.get(word, (word,)))), Path(out)
    how = {"windows": windows_in(out) if windows is None else windows, "mode": mode, "reach": reach}
    evaluation = evaluation_of(model.train_length, lengths, last_k=last_k, **how)
    _check(data, methods, model, train, out, seeds=seeds, windows=windows, jobs=jobs)
    evaluation.check()
    with locked(out):
        plan = _plan(data, methods, seeds, model, train, evaluation, out, device)
        failures = begin_and_run(
            plan, jobs=jobs, executor=executor, tables=lambda rows, width: [terminal(rows, plan, width)]
        )
        return _found(plan, failures)


def _check(
    data: "str | Path | Corpus",
    methods: Sequence[str],
    model: DecoderConfig,
    train: TrainConfig,
    out: Path,
    **counts: int | None,
) -> None:
    """What can be said without torch and without the text."""
    check_methods(methods)
    check_counts(**counts)
    model.check()
    for name in model.encoding_options:
        method, dot, _ = name.rpartition(".")
        if dot and method not in methods:
            raise UsageError(f"`encoding_options` {name}: {method} is not among the `methods`")
    train.check()
    Comparison.check_folder(out)
    from dape.data.corpora import check_data  # with numpy, for which `dape --help` need not wait

    check_data(data)


def _plan(
    data: "str | Path | Corpus",
    methods: tuple[str, ...],
    seeds: int,
    model: DecoderConfig,
    train: TrainConfig,
    evaluation: EvalConfig,
    out: Path,
    device: str,
) -> Comparison:
    """Everything else that can be wrong is found here, before anything is trained."""
    from dape.data.corpora import as_corpus

    corpus = as_corpus(data, out=out / "data")  # before torch is imported, which takes longer than to see a wrong path
    from dape.evaluation.perplexity import ends_of, with_reach
    from dape.training.device import use_device

    device = str(use_device(device))
    evaluation = with_reach(evaluation_in(out, evaluation), corpus.validation)
    room = len(ends_of(corpus.validation, evaluation))
    if room < evaluation.windows:
        tell(f"note: the held-out text has room for {count(room, 'window')} only, not {evaluation.windows}")
    for method in methods:
        check_model(model_for(method, model), train, device)
        check_reach(model_for(method, model), max(evaluation.lengths))
    return Comparison(
        out=out,
        methods=methods,
        seeds=seeds,
        model=model,
        train=train,
        evaluation=evaluation,
        data=str(corpus.folder.resolve()),
        data_name=corpus.name,
        data_hash=corpus.hash,
        device=device,
    )


def terminal(rows: "list[Row]", plan: Comparison, width: int) -> Any:
    """What is found so far, as a table of rich."""
    from dape.report.tables import terminal_table

    return terminal_table(
        rows,
        methods=plan.methods,
        lengths=plan.evaluation.lengths,
        seeds=range(plan.seeds),
        train_length=plan.model.train_length,
        width=width,
    )


def _found(plan: Comparison, failures: dict[str, str]) -> Found:
    """With its files, if there are rows."""
    from dape.report.figures import perplexity_figure, save_figure
    from dape.report.summary import summary
    from dape.report.tables import markdown_table

    methods, lengths = plan.methods, plan.evaluation.lengths
    found = Found(
        rows=plan.collect(),
        out=plan.out,
        files=FILES,
        failures=failures,
        make_table=lambda rows: markdown_table(rows, methods=methods, lengths=lengths),
        make_figure=lambda rows: perplexity_figure(rows, methods=methods),
        make_summary=lambda rows: summary(rows, methods=methods, lengths=lengths, seeds=range(plan.seeds)),
        make_terminal=lambda rows, width: [terminal(rows, plan, width)],
    )
    if found.rows:
        write_text(plan.out / "table.md", found.table())
        write_text(plan.out / "summary.md", found.summary())
        save_figure(found.figure(), plan.out / "curves")
    return found
