"""Prepare text as a folder of token shards, in one run or in several.

Everything is written to a hidden folder ``.NAME.partial`` beside the output, which is renamed at the end, so the output
is always complete. ``progress.json`` in the hidden folder says how far the shards are: after a crash, the same command
continues from it and makes the same bytes.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dape.data.job import Job, Options, Watcher, clear, has_tokens, read_progress
from dape.data.sources import Source, digest, expand
from dape.data.store import Corpus, is_prepared, prepared_files, read_manifest
from dape.data.tokenizer import tokenizer_identity
from dape.errors import UsageError
from dape.files import check_writable_folder, only_one

__all__ = ["Options", "Prepared", "Watcher", "prepare"]


class Prepared(NamedTuple):
    corpus: Corpus
    how: Literal["new", "continued", "already there"]


def prepare(
    sources: Sequence[str], out: Path, options: Options, watcher: Watcher | None = None, *, wait: bool = False
) -> Prepared:
    """Prepare the sources in ``out``, unless that has been done. ``wait`` for another process that is doing it."""
    options.check()
    if options.workers is not None:  # the library reads it when it first encodes in this process
        os.environ["RAYON_NUM_THREADS"] = str(options.workers)
    target = Path(out).resolve()
    _check_target(target, out)
    with contextlib.ExitStack() as stack:
        found = _expand(sources, target, "train", stack)
        held_out = _expand(options.validation, target, "validation", stack)
        settings = _settings(found, held_out, options)
        if existing := _existing(target, out, settings, options):
            return existing
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = stack.enter_context(_partial_folder(target, wait))
        if wait and (existing := _existing(target, out, settings, options)):
            return existing
        with _disk_full_explained(target):
            _check_unfinished(partial, settings, options)
            continued = Job(partial, [*found, *held_out], settings, options, watcher).run()
            _publish(partial, target)
    return Prepared(Corpus.open(target), "continued" if continued else "new")


def _existing(target: Path, out: Path, settings: dict[str, Any], options: Options) -> Prepared | None:
    """The prepared folder if it exists. UsageError if it was made with other settings."""
    if not is_prepared(target) or options.overwrite:
        return None
    _check_same(settings, read_manifest(target)["settings"], f"{out} is there already")
    shutil.rmtree(_replaced(target), ignore_errors=True)
    return Prepared(Corpus.open(target), "already there")


# Settings that decide the content of a folder ------------------------------------------------------------------------


def _expand(given: Sequence[str], target: Path, part: str, stack: contextlib.ExitStack) -> list[Source]:
    sources = []
    for number, name in enumerate(given):
        spool = target.with_name(f".{target.name}.{part}{number}.pipe")
        stack.callback(spool.unlink, missing_ok=True)
        source = expand(name, spool)
        sources.append(replace(source, items=[replace(item, part=part) for item in source.items]))
    return sources


def _settings(found: Sequence[Source], held_out: Sequence[Source], options: Options) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "inputs": digest([item for source in found for item in source.items]),
        "tokenizer": tokenizer_identity(options.tokenizer),
        "text_field": options.text_field,
        "strict": options.strict,
        "shard_tokens": options.shard_tokens,
    }
    if held_out:
        settings["validation"] = digest([item for source in held_out for item in source.items])
    else:
        settings["validation_share"] = options.validation_share
    return settings


def _check_same(wanted: dict[str, Any], existing: dict[str, Any], what: str) -> None:
    different = [key for key in {**existing, **wanted} if wanted.get(key) != existing.get(key)]
    if not different:
        return
    words = [_difference(key, existing.get(key), wanted.get(key)) for key in different]
    raise UsageError(f"{what}, made with {'; '.join(words)}. Choose another `out`, or replace it with `overwrite`.")


def _difference(key: str, existing: Any, wanted: Any) -> str:
    if key == "inputs":
        return "other sources (or they have changed since)"
    if key == "validation":
        return "other `validation` sources"
    return f"{key.replace('_', ' ')} {existing} instead of {wanted}"


# Folders -------------------------------------------------------------------------------------------------------------


def _check_target(target: Path, out: Path) -> None:
    check_writable_folder(target.parent, f"`out` {out}: the folder")
    if target.is_dir() and any(target.iterdir()) and not is_prepared(target):
        raise UsageError(f"`out` {out}: is a folder with other things in it; choose a new one")
    if target.exists() and not target.is_dir():
        raise UsageError(f"`out` {out}: is a file, not a folder")


@contextlib.contextmanager
def _partial_folder(target: Path, wait: bool) -> Iterator[Path]:
    """The hidden folder to write to, for one process at a time. It is removed unless a later run can continue it."""
    partial = target.with_name(f".{target.name}.partial")
    lock = target.with_name(f".{target.name}.partial.lock")  # not inside, as the folder is renamed at the end
    busy = f"another process is writing to {partial}; wait for it, or choose another `out`"
    waiting = f"another process is preparing the same text; waiting until {target.name} is there"
    with only_one(lock, waiting if wait else busy, remove=True, wait=wait):
        partial.mkdir(exist_ok=True)
        try:
            yield partial
        finally:
            if partial.is_dir() and not _worth_keeping(partial):
                shutil.rmtree(partial, ignore_errors=True)


def _worth_keeping(partial: Path) -> bool:
    """Whether a later run can continue with it: there are shards, or a tokenizer that took long to learn."""
    try:
        saved = read_progress(partial)
    except ValueError:  # reported already; the user decides whether to remove the folder
        return True
    return saved is not None and (has_tokens(saved) or saved["settings"]["tokenizer"].startswith("bpe:"))


def _check_unfinished(partial: Path, settings: dict[str, Any], options: Options) -> None:
    """Keep what an earlier run with the same settings has left. With other settings, raise UsageError, or clear the
    folder if nothing was encoded or the user said `overwrite`."""
    earlier = read_progress(partial)
    if earlier is None or earlier["settings"] == settings:
        return
    if has_tokens(earlier) and not options.overwrite:
        _check_same(settings, earlier["settings"], f"the unfinished folder {partial} is there")
    clear(partial)


def _publish(partial: Path, target: Path) -> None:
    """Rename the complete folder to ``target``, in place of an older one."""
    wanted = prepared_files(read_manifest(partial))
    for path in partial.iterdir():  # progress, and what killed runs have left
        if path.name not in wanted:
            path.unlink()
    old = _replaced(target)
    shutil.rmtree(old, ignore_errors=True)
    if target.is_dir():
        os.rename(target, old)
    os.rename(partial, target)
    shutil.rmtree(old, ignore_errors=True)


def _replaced(target: Path) -> Path:
    """Where the older folder is kept until the new one has its name. Only a crash in between leaves it there."""
    return target.with_name(f".{target.name}.old")


@contextlib.contextmanager
def _disk_full_explained(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        message = f"the disk of {target.parent} is full. Free some space; the same command goes on where it stopped."
        raise OSError(message) from error
