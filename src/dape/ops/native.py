"""Compile a C++ file for this machine's processor, once, into the user's cache."""

import contextlib
import functools
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dape.files import cache_folder, replacing, sha256, sha256_of
from dape.verbosity import tell

ANY_PROCESSOR = (
    # The kernels throw no exceptions, and without them a library needs no C++ runtime.
    *("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fno-exceptions"),
    # The kernels use infinities and NaNs, but neither errno nor floating-point traps.
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
)
FLAGS = (*ANY_PROCESSOR, "-march=native")
TIMEOUT = 300
TEMPORARY = "compiling-"
GUARD = Path(__file__).with_name("guard.py")
_ONE_AT_A_TIME = threading.Lock()
TEXT: Any = {"text": True, "encoding": "utf-8", "errors": "replace"}
"""How compilers' messages are decoded: they are in the user's language, in any encoding."""


def build(source: Path) -> Path:
    """The shared library of a source and its headers. Raises ``OSError`` if it cannot be compiled."""
    compiler = find_compiler()
    folder = own_folder(cache_folder() / "kernels")
    name = _fingerprint(source, compiler)
    with _ONE_AT_A_TIME:  # for threads; several processes may compile at once, and use each other's library
        return _intact(folder, name) or _compile(source, compiler, folder, name)


def find_compiler() -> str:
    names = [name for name in (os.environ.get("CXX"), "g++", "clang++", "c++") if name]
    for name in names:
        if path := shutil.which(name):
            return path
    raise OSError(f"no C++ compiler found (looked for {', '.join(names)}); install g++ or set CXX")


def _compile(source: Path, compiler: str, folder: Path, name: str) -> Path:
    _sweep(folder)
    tell(f"compiling {source.name}, an attention kernel, for this processor: once, about 10 s")
    with tempfile.TemporaryDirectory(dir=folder, prefix=TEMPORARY) as temporary:
        made = compiled(source, compiler, FLAGS, temporary)
        made.chmod(0o700)
        library = folder / f"{name}-{sha256(made)}.so"
        with replacing(library) as place:  # fsync before rename: loading a partial library would crash
            os.replace(made, place)
    return library


def compiled(source: Path, compiler: str, flags: Sequence[str], folder: str, linked: Sequence[str] = ()) -> Path:
    """Compile a shared library in the folder. Raises ``OSError`` with the compiler's messages."""
    object_file, made = Path(folder) / "kernel.o", Path(folder) / "kernel.so"
    _run([compiler, *flags, "-c", str(source), "-o", str(object_file)], folder)
    # Not linked with OpenMP: the library uses the copy that torch has loaded. A second copy would start more threads,
    # which would compete for the cores.
    _run([compiler, "-shared", *linked, str(object_file), "-o", str(made)], folder)
    return made


def _run(command: list[str], temporary: str) -> None:
    """Run the compiler. If this process ends or is interrupted, so does the compiler, and its files are removed."""
    log = Path(temporary) / "log"
    guarded = [sys.executable, "-I", "-S", str(GUARD), temporary, *command]
    try:
        with (
            log.open("wb") as messages,
            subprocess.Popen(
                guarded,
                stdin=subprocess.PIPE,
                stdout=messages,
                stderr=messages,
                start_new_session=True,
                env={**os.environ, "TMPDIR": temporary},
            ) as guard,
        ):
            code = guard.wait(TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OSError(f"{command[0]} could not be run: {error}") from error
    if code:
        messages = log.read_text(encoding="utf-8", errors="replace")
        raise OSError(f"{' '.join(command)} failed:\n{messages[-2000:]}")


def _sweep(folder: Path) -> None:
    """Remove the files of compilations whose machine or container was stopped."""
    for left in folder.glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):  # another process may remove it at the same time
            if left.stat().st_mtime < time.time() - 3 * TIMEOUT:
                shutil.rmtree(left, ignore_errors=True)


# What may be loaded --------------------------------------------------------------------------------------------------


def own_folder(folder: Path) -> Path:
    """Create or check a folder that nobody else can write to, because its files will be executed."""
    if folder.is_symlink():
        raise OSError(f"{folder} is a symbolic link; remove it, or set DAPE_CACHE to the folder it points to")
    folder.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
    if os.name == "posix":
        _check_owner(folder, "set DAPE_CACHE to a folder of your own")
        for parent in folder.resolve().parents:  # users who can write there can replace our folder
            mode = parent.stat().st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise OSError(f"{parent} can be written by others; set DAPE_CACHE to a folder within one of your own")
    return folder


def _check_owner(path: Path, advice: str) -> None:
    found = path.lstat()
    if found.st_uid != os.getuid():
        raise OSError(f"{path} belongs to another user; {advice}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(f"{path} can be written by others; {advice}")


def _intact(folder: Path, name: str) -> Path | None:
    """The library whose content matches the hash in its name. Damaged ones are deleted."""
    for library in sorted(folder.glob(f"{name}-*.so")):
        if os.name == "posix":
            _check_owner(library, "delete it")
        if library.name == f"{name}-{sha256(library)}.so":
            return library
        library.unlink(missing_ok=True)
    return None


def _fingerprint(source: Path, compiler: str) -> str:
    """Hash of everything the library depends on. Machines with other processors may share the cache."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False, **TEXT).stdout
    return fingerprint(source, FLAGS, compiler, version, platform.platform(), processor())


def fingerprint(source: Path, flags: Sequence[str], *more: str) -> str:
    """Hash of a source with its headers, the flags, and anything else given."""
    texts = [part.read_text(encoding="utf-8") for part in parts_of(source)]
    return sha256_of("\0".join([*texts, " ".join(flags), *more]))[:32]


def parts_of(source: Path) -> list[Path]:
    """A source and the headers in its folder that it includes, directly or through others, each once."""
    found = [source]
    for part in found:
        for name in re.findall(r'^#include "(.+)"', part.read_text(encoding="utf-8"), re.MULTILINE):
            if (header := part.with_name(name)) not in found:
                found.append(header)
    return found


@functools.cache
def processor() -> str:
    """The processor's name and its instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(wanted)))
