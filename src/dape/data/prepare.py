"""Text to a prepared folder, in one go or in several.

All is written to a hidden folder ``.NAME.partial`` beside the output, which is renamed at the end: whoever sees the
output sees all of it. ``progress.json`` in there says how far the shards are; the same command goes on from it after
a crash and makes the same bytes.
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
    """Make ``out`` from the sources, or find that it has been made. ``wait`` for another process that makes it."""
    options.check()
    if options.workers is not None:  # read by the library at its first work in this process
        os.environ["RAYON_NUM_THREADS"] = str(options.workers)
    target = Path(out).resolve()
    _check_target(target, out)
    with contextlib.ExitStack() as stack:
        found = _expand(sources, target, "train", stack)
        held_out = _expand(options.validation, target, "validation", stack)
        settings = _settings(found, held_out, options)
        if there := _already_there(target, out, settings, options):
            return there
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = stack.enter_context(_partial_folder(target, wait))
        if wait and (there := _already_there(target, out, settings, options)):
            return there
        with _disk_full_explained(target):
            _check_unfinished(partial, settings, options)
            continued = Job(partial, [*found, *held_out], settings, options, watcher).run()
            _publish(partial, target)
    return Prepared(Corpus.open(target), "continued" if continued else "new")


def _already_there(target: Path, out: Path, settings: dict[str, Any], options: Options) -> Prepared | None:
    if not is_prepared(target) or options.overwrite:
        return None
    _check_same(settings, read_manifest(target)["settings"], f"{out} is there already")
    shutil.rmtree(_replaced(target), ignore_errors=True)
    return Prepared(Corpus.open(target), "already there")


# Settings: what must be the same for a folder to be the same ---------------------------------------------------------


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


def _check_same(wanted: dict[str, Any], there: dict[str, Any], what: str) -> None:
    different = [key for key in {**there, **wanted} if wanted.get(key) != there.get(key)]
    if not different:
        return
    told = [_difference(key, there.get(key), wanted.get(key)) for key in different]
    raise UsageError(f"{what}, made with {'; '.join(told)}. Choose another `out`, or replace it with `overwrite`.")


def _difference(key: str, there: Any, wanted: Any) -> str:
    if key == "inputs":
        return "other sources (or they have changed since)"
    if key == "validation":
        return "other `validation` sources"
    return f"{key.replace('_', ' ')} {there} instead of {wanted}"


# Folders -------------------------------------------------------------------------------------------------------------


def _check_target(target: Path, out: Path) -> None:
    check_writable_folder(target.parent, f"`out` {out}: the folder")
    if target.is_dir() and any(target.iterdir()) and not is_prepared(target):
        raise UsageError(f"`out` {out}: is a folder with other things in it; choose a new one")
    if target.exists() and not target.is_dir():
        raise UsageError(f"`out` {out}: is a file, not a folder")


@contextlib.contextmanager
def _partial_folder(target: Path, wait: bool) -> Iterator[Path]:
    """The hidden folder to write to, for one process at a time; it stays if there is something to go on from."""
    partial = target.with_name(f".{target.name}.partial")
    lock = target.with_name(f".{target.name}.partial.lock")  # beside it: the folder itself is renamed at the end
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
    """A tokenizer that took long to learn is something to go on from, too."""
    try:
        saved = read_progress(partial)
    except ValueError:  # what is wrong has been said; whether to remove it, the user decides
        return True
    return saved is not None and (has_tokens(saved) or saved["settings"]["tokenizer"].startswith("bpe:"))


def _check_unfinished(partial: Path, settings: dict[str, Any], options: Options) -> None:
    """What another run has left is gone on with, refused, or thrown away if so told."""
    there = read_progress(partial)
    if there is None or there["settings"] == settings:
        return
    if has_tokens(there) and not options.overwrite:
        _check_same(settings, there["settings"], f"the unfinished folder {partial} is there")
    clear(partial)


def _publish(partial: Path, target: Path) -> None:
    """The partial folder is complete: it becomes the target, in place of an older one."""
    wanted = prepared_files(read_manifest(partial))
    for path in partial.iterdir():  # notes, and what killed runs have left
        if path.name not in wanted:
            path.unlink()
    old = _replaced(target)
    shutil.rmtree(old, ignore_errors=True)
    if target.is_dir():
        os.rename(target, old)
    os.rename(partial, target)
    shutil.rmtree(old, ignore_errors=True)


def _replaced(target: Path) -> Path:
    """Where an older folder is until the new one is in its place; left there only by a crash just then."""
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
