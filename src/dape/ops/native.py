"""Compile a C++ file for this machine's processor, once, into the user's cache."""

import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

from dape.files import cache_folder, replacing

FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-fPIC", "-fopenmp"),
    # Infinities and NaNs are meant; only errno and floating-point traps are given up.
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
)
TIMEOUT = 300
_ONE_AT_A_TIME = threading.Lock()
TEXT: Any = {"text": True, "encoding": "utf-8", "errors": "replace"}
"""Compilers speak the user's language, in whatever encoding."""


def build(source: Path) -> Path:
    """The shared library of a source without headers of its own. Raises ``OSError`` that says why there is none."""
    compiler = find_compiler()
    folder = _own_folder(cache_folder() / "kernels")
    library = folder / f"{_fingerprint(source, compiler)}.so"
    with _ONE_AT_A_TIME:  # two processes may compile at once, the second replaces the same file; threads share its name
        if not library.exists():
            _compile(source, compiler, library)
    return _checked(library)


def find_compiler() -> str:
    names = [name for name in (os.environ.get("CXX"), "g++", "clang++", "c++") if name]
    for name in names:
        if path := shutil.which(name):
            return path
    raise OSError(f"no C++ compiler found (looked for {', '.join(names)}); install g++ or set CXX")


def _compile(source: Path, compiler: str, library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        object_file, made = Path(folder) / "kernel.o", Path(folder) / "kernel.so"
        _run([compiler, *FLAGS, "-c", str(source), "-o", str(object_file)])
        # Not linked with OpenMP: its functions are found in the copy that torch has loaded. A second copy would have
        # threads of its own, and the two would compete for the cores.
        _run([compiler, "-shared", str(object_file), "-o", str(made)])
        made.chmod(0o700)
        with replacing(library) as place:  # on the disk before it has its name: half a library would crash who loads it
            os.replace(made, place)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=False, **TEXT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OSError(f"{command[0]} could not be run: {error}") from error
    if done.returncode:
        raise OSError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")


def _own_folder(folder: Path) -> Path:
    """A folder that nobody else can write to: what lies in it will be executed."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.name == "posix":
        found = folder.stat()
        if found.st_uid != os.getuid():
            raise OSError(f"{folder} belongs to another user; set DAPE_CACHE to a folder of your own")
        folder.chmod(stat.S_IRWXU)
    return folder


def _checked(library: Path) -> Path:
    found = library.stat()
    if os.name == "posix" and (found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise OSError(f"{library} can be written by others; delete it")
    return library


def _fingerprint(source: Path, compiler: str) -> str:
    """Of everything the library depends on: a cache may be shared by machines with other processors."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False, **TEXT).stdout
    parts = (source.read_text(encoding="utf-8"), " ".join(FLAGS), compiler, version, platform.platform(), processor())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@functools.cache
def processor() -> str:
    """The processor's name and its instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(wanted)))
