"""Writing files so that a reader never sees half of one and a failure leaves the old one in place. No torch here."""

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
    """A temporary path beside ``path``: write a file there, and it takes the place of ``path`` on success only."""
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
    """All of ``text`` or nothing."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside ``path`` that becomes ``path`` on success; ``path`` must not exist by then."""
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
    """A folder among the system's temporary ones that only this user can read. What a killed process has left of the
    same name goes first."""
    parent = Path(tempfile.gettempdir())
    _sweep(parent, name)
    folder = _temporary(parent / name)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_writable_file(path: Path, what: str) -> None:
    """Complain now rather than after minutes of work."""
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
    """The folder itself need not exist yet, nor its parents; nothing is created here."""
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
    """In the same folder, as a file can only be replaced at once within one file system."""
    return target.with_name(f".{target.name}.{os.getpid()}.tmp")


def _sweep(folder: Path, name: str = "*") -> None:
    """Remove what processes that were killed have left in ``folder`` of files and folders that were to be ``name``."""
    for path in folder.glob(f".{name if name == '*' else glob.escape(name)}.*.tmp"):
        process = re.fullmatch(r"\..+\.(\d{1,9})\.tmp", path.name)
        if process and not _is_running(int(process[1])):
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _is_running(process: int) -> bool:
    if os.name == "nt":  # where there is no harmless signal
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


def _sync(path: Path) -> None:
    """Ask the system to put it on the disk now: a rename must not become durable before what it names."""
    with contextlib.suppress(OSError):  # folders cannot be synchronised everywhere
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes of ours out of ``folder``, which is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    with only_one(folder / ".lock", f"{folder} is in use by another dape process; wait for it, or use another `out`"):
        _sweep(folder)
        yield


@contextlib.contextmanager
def only_one(lock: Path, busy: str, *, remove: bool = False, wait: bool = False) -> Iterator[None]:
    """Hold the lock on the file ``lock``, or say ``busy`` at once if another process holds it; with ``wait`` say so on
    standard error, and go on when it has done.

    The system releases it even if this process is killed; the file then stays, and locks nobody out. ``remove`` takes
    it away at the end: filelock notices, and does not count, a lock on a file that is gone. A file system without
    locks cannot keep anybody out, and the user has no other: there we go on without one.
    """
    from filelock import FileLock, Timeout  # a tenth of a second, which `dape --help` need not take

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
            with contextlib.suppress(OSError):  # Windows keeps files that are open
                lock.unlink(missing_ok=True)
        held.release()


def sha256(path: Path) -> str:
    """Of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of(content: str | bytes) -> str:
    """Of a text (as UTF-8) or of bytes, in hexadecimal."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def cache_folder() -> Path:
    """Where what can be made again is kept between runs; ``$DAPE_CACHE`` chooses another place."""
    if chosen := os.environ.get("DAPE_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dape"
