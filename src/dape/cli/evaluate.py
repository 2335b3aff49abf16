"""``dape eval``: perplexity of a checkpoint against length. Imports torch only when it runs."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from dape.cli.checks import check_rows_file
from dape.cli.console import open_console
from dape.cli.devices import set_threads, use_device
from dape.errors import UsageError
from dape.evaluation.config import EvalConfig, Mode, Protocol

if TYPE_CHECKING:
    from dape.data.store import Corpus
    from dape.results.records import Row
    from dape.training.checkpoint import Description


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Perplexity of a trained model at any lengths, on held-out text.

    By default the last 256 tokens of windows that end at the same tokens for every length. Prints a table; --json
    appends one row per length to a file.
    """

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """A run's folder (its newest checkpoint), or one checkpoint."""
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
    """Tokens of context to evaluate at."""
    last_k: int = 256
    """Scored tokens per window."""
    windows: int = 256
    """Windows, the same number at every length."""
    protocol: Protocol = "last_k"
    """last_k: windows of every length end at the same tokens, the last k of which are scored. full: the same windows,
    all tokens scored. nonoverlap: the text cut into windows, all tokens scored. per_position: as full, by position."""
    mode: Mode = "packed"
    """packed: windows may run across documents, as in the paper. same_document: each lies within one document."""
    reach: int | None = None
    """Tokens that fit before every place where a window ends, whatever the lengths; by default it follows from the
    text: 32768, or about half of a shorter text. Only windows of one reach score the same tokens."""
    data: str | None = None
    """Text to evaluate on (its held-out part), as for `dape train`; by default what the model was trained on."""
    json: Path | None = None
    """Append the rows to this file, one JSON object per line."""
    device: str = "auto"
    """Where to compute: cpu, cuda, ...; auto takes a GPU if there is one."""
    threads: int | None = None
    """Threads of torch on the CPU; None leaves the choice to torch."""


def run(config: Evaluate) -> int:
    settings = EvalConfig(
        lengths=config.lengths,
        protocol=config.protocol,
        last_k=config.last_k,
        windows=config.windows,
        mode=config.mode,
        reach=config.reach,
    )
    settings.check()
    if config.json is not None:
        check_rows_file(config.json, "--json")
    device = use_device(config.device)
    set_threads(config.threads)
    return _evaluate(config, settings, device)


def _evaluate(config: Evaluate, settings: EvalConfig, device: Any) -> int:
    from dape.evaluation.perplexity import as_rows, measure
    from dape.results.records import append_rows
    from dape.training import checkpoint as checkpoints

    where = checkpoints.find(config.checkpoint)
    description = checkpoints.describe(where)
    corpus = open_corpus(config.data, where, description)
    model = checkpoints.load_model(where, description, device).eval()
    subject = subject_of(where, description, corpus)
    rows: list[Row] = []
    try:
        for measured in measure(model, corpus.validation, settings, watch=_watch):
            new = as_rows(measured, subject, settings)
            if config.json is not None:
                append_rows(config.json, new)
            rows += new
    finally:
        print(file=sys.stderr)
        _print(rows, settings, config)
    return 0


def open_corpus(given: str | None, where: Path, description: "Description") -> "Corpus":
    """The data asked for, or that of training; its tokenizer must be the model's."""
    from dape.data.corpora import open_data
    from dape.training.run import CONFIG, RunConfig

    run = run_folder(where)
    if given is not None:
        corpus = _open_given(given, where, description)
    elif (run / CONFIG).is_file():
        corpus = open_data(RunConfig.read(run).data, out=run / "data")
    else:
        raise UsageError(f"{where} does not say where its data is; name it with --data")
    if corpus.tokenizer.fingerprint != description.data["tokenizer_fingerprint"]:
        raise UsageError(
            f"{corpus.folder} was prepared with the tokenizer {corpus.tokenizer.name}, the model in {where} was "
            f"trained with {description.data['tokenizer']} ({description.data['tokenizer_fingerprint'][:12]}); "
            f"prepare the text with the model's: dape prepare ... --tokenizer {where}/tokenizer.json"
        )
    return corpus


def _open_given(spec: str, where: Path, description: "Description") -> "Corpus":
    bytes_alone = description.data["tokenizer"] == "bytes"
    tokenizer = "bytes" if bytes_alone else str(where / "tokenizer.json")
    return open_text(spec, tokenizer, description.data["tokenizer_fingerprint"])


def open_text(spec: str, tokenizer: str, fingerprint: str) -> "Corpus":
    """A prepared folder as it is; text is prepared with the model's own tokenizer, and kept in the cache."""
    from dape.data.corpora import open_data
    from dape.data.sources import digest, expand
    from dape.data.store import is_prepared
    from dape.files import cache_folder

    if is_prepared(Path(spec)):
        return open_data(spec)
    key = f"{digest(expand(spec).items)[:12]}-{fingerprint[:12]}"
    return open_data(spec, out=cache_folder() / f"text-{key}", tokenizer=tokenizer)


def run_folder(checkpoint: Path) -> Path:
    """The run that a checkpoint belongs to."""
    return checkpoint.resolve().parent.parent


def subject_of(where: Path, description: "Description", corpus: "Corpus") -> Any:
    from dape.evaluation.perplexity import Subject
    from dape.provenance import provenance

    return Subject(
        run=run_folder(where).name,
        method=description.model.encoding,
        seed=description.train.seed,
        train_length=description.model.train_length,
        step=description.step,
        data_hash=corpus.hash,
        tokenizer=corpus.tokenizer.name,
        extra=provenance(),
    )


def _watch(length: int, done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{length} tokens: window {done}/{total}   ", end="", file=sys.stderr, flush=True)


def _print(rows: "list[Row]", settings: EvalConfig, config: Evaluate) -> None:
    from rich.table import Table

    if not rows:
        return
    first = rows[0]
    print(
        f"{first.method}, step {first.step}: {settings.protocol}, {settings.mode}, reach {first.reach}, "
        f"data {first.data_hash[:12]}"
    )
    table = Table(box=None, pad_edge=False)
    by_position = settings.protocol == "per_position"
    middle = ("positions", "nats") if by_position else ("perplexity",)
    for header in ("length", *middle, "tokens", "windows"):
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        bucket = [f"{row.extra['first_position']}-{row.extra['last_position']}"] if by_position else []
        table.add_row(str(row.length), *bucket, f"{row.value:.4f}", str(row.scored_tokens), str(row.windows))
    open_console().print(table)
    if settings.protocol != "nonoverlap" and (first.windows or 0) < settings.windows:
        print(f"the held-out text has room for {first.windows} windows only, not {settings.windows}")
    if config.json is not None:
        print(f"appended {len(rows)} rows to {config.json}")
