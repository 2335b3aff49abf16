"""Write files atomically: readers never see a part of one, and a failure leaves the old file. No torch here."""

import contextlib
import errno
import glob
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dape.errors import UsageError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder. A file written there replaces ``path`` on success only."""
    target = path.resolve()
    temporary = _temporary(target)
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, target)
        _sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write the whole text or nothing."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to ``path`` on success; ``path`` must not exist then."""
    target = path.resolve()
    temporary = _temporary(target)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for file in temporary.rglob("*"):
            _sync(file)
        os.rename(temporary, target)
        _sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def scratch(name: str) -> Iterator[Path]:
    """Yield a temporary folder that only this user can read. Folders of the same name that killed processes have left
    are removed first."""
    parent = Path(tempfile.gettempdir())
    _sweep(parent, name)
    folder = _temporary(parent / name)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_writable_file(path: Path, what: str) -> None:
    """Raise UsageError, before minutes of work, if the file cannot be written. ``what`` is the name of the argument."""
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise UsageError(f"{what} {path}: is not a regular file")
    if target.exists() and not os.access(target, os.W_OK):
        raise UsageError(f"{what} {path}: may not be written")
    if not target.parent.is_dir():
        raise UsageError(f"{what} {path}: the folder {target.parent} does not exist; create it first")
    _sweep(target.parent, target.name)
    _check_can_create_in(target.parent, f"{what} {path}")


def check_writable_folder(path: Path, what: str) -> None:
    """Raise UsageError if nothing can be written to the folder. It need not exist, and is not created."""
    nearest = path.resolve()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir():
        raise UsageError(f"{what} {path}: {nearest} is a file, not a folder")
    _sweep(path.resolve().parent, path.name)
    _check_can_create_in(nearest, f"{what} {path}")


def _check_can_create_in(folder: Path, what: str) -> None:
    trial = _temporary(folder / "trial")
    try:
        trial.touch()
        trial.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{what}: cannot create files in {folder} ({error.strerror})") from error


def _temporary(target: Path) -> Path:
    """A temporary name in the same folder: renaming is atomic within one file system only."""
    return target.with_name(f".{target.name}.{os.getpid()}.tmp")


def _sweep(folder: Path, name: str = "*") -> None:
    """Remove the temporary files and folders for ``name`` that killed processes have left in ``folder``."""
    for path in folder.glob(f".{name if name == '*' else glob.escape(name)}.*.tmp"):
        process = re.fullmatch(r"\..+\.(\d{1,9})\.tmp", path.name)
        if process and not _is_running(int(process[1])):
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _is_running(process: int) -> bool:
    if os.name == "nt":  # Windows has no signal without an effect
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # a process of another user
        return True
    return True


def _sync(path: Path) -> None:
    """fsync a file or folder: its content must be on the disk before it is renamed."""
    with contextlib.suppress(OSError):  # not all systems can fsync a folder
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create ``folder`` and lock it for other processes of dape. UsageError if it is locked already."""
    folder.mkdir(parents=True, exist_ok=True)
    with only_one(folder / ".lock", f"{folder} is in use by another dape process; wait for it, or use another `out`"):
        _sweep(folder)
        yield


@contextlib.contextmanager
def only_one(lock: Path, busy: str, *, remove: bool = False, wait: bool = False) -> Iterator[None]:
    """Hold a lock on the file ``lock``.

    The system releases the lock even if this process is killed; the file that then remains does not lock anything. On a
    file system without locks, nothing is locked.

    Args:
        lock: the file, which is created.
        busy: the message if another process holds the lock.
        remove: remove the file at the end. Filelock notices a removed file, and does not count its lock.
        wait: print ``busy`` to standard error and wait for the other process.

    Raises:
        UsageError: ``busy``, if another process holds the lock and ``wait`` is not set.
    """
    from filelock import FileLock, Timeout  # takes a tenth of a second to import, too long for `dape --help`

    held = FileLock(lock, timeout=0)
    try:
        held.acquire()
    except Timeout:
        if not wait:
            raise UsageError(busy) from None
        print(busy, file=sys.stderr, flush=True)
        held.acquire(timeout=-1)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
            raise
    try:
        yield
    finally:
        if remove:
            with contextlib.suppress(OSError):  # Windows cannot remove open files
                lock.unlink(missing_ok=True)
        held.release()


def sha256(path: Path) -> str:
    """The sha256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of(content: str | bytes) -> str:
    """The sha256 of a text (as UTF-8) or of bytes, in hexadecimal."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def cache_folder() -> Path:
    """The folder for files that can be made again; ``$DAPE_CACHE`` overrides it."""
    if chosen := os.environ.get("DAPE_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dape"
