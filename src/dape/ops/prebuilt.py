"""Compiled libraries that come with the package (``make wheel``), so that its user needs no compiler.

They are in ``compiled/TARGET``. Their names have a hash of their source and flags, so that they are never used with
another version of the Python code, and a hash of their content, which is checked before loading. Owners of the folder
are not checked: users who can write to it can also change the Python code beside it.
"""

import ctypes
import platform
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dape.files import sha256
from dape.ops import native
from dape.ops.switch import FUSED_SWITCH, fused_mode
from dape.verbosity import tell

FOLDER = Path(__file__).with_name("compiled")
GLIBC = (2, 28)
"""The newest glibc that the libraries may need, as for torch's wheels; `packaging/kernels.py` checks it."""


@dataclass(frozen=True)
class Target:
    """The processors that a library is compiled for."""

    name: str
    machine: str
    needs: frozenset[str]
    """Flags in /proc/cpuinfo that the library needs."""

    @property
    def flags(self) -> tuple[str, ...]:
        return (*native.ANY_PROCESSOR, f"-march={'armv8-a' if self.machine == 'aarch64' else self.name}")

    def fits(self) -> bool:
        return sys.platform == "linux" and platform.machine() == self.machine and self.needs <= features()


_V3 = frozenset(["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"])
_V4 = _V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
TARGETS = (  # the best first
    Target("x86-64-v4", "x86_64", _V4),
    Target("x86-64-v3", "x86_64", _V3),
    Target("aarch64", "aarch64", frozenset()),
)


def load(source: Path, opened: Callable[[Path], ctypes.CDLL]) -> ctypes.CDLL:
    """The library of a source, loaded by ``opened``: one that came with the package, or one compiled here. Raises
    ``OSError`` if there is none."""
    mode, trouble = fused_mode(), ""
    if mode != "native":
        try:
            if found := find(source):
                return opened(found)
            trouble = "none came with the package for this system and processor"
        except OSError as error:
            trouble = str(error)
            tell(f"a kernel that came with the package cannot be used: {trouble}")
    if mode == "prebuilt":
        raise OSError(f"{trouble}; nothing is compiled, because the environment variable {FUSED_SWITCH} is prebuilt")
    try:
        return opened(native.build(source))
    except OSError as error:
        raise OSError(f"{error}; {trouble}" if trouble and FOLDER.is_dir() else str(error)) from error


def find(source: Path) -> Path | None:
    """The best library for this processor. Raises ``OSError`` if it is damaged."""
    if _glibc() < GLIBC:
        return None
    for target in TARGETS:
        for library in FOLDER.glob(f"{target.name}/{stem(source, target)}-*.so") if target.fits() else ():
            if library.stem.rpartition("-")[2] != sha256(library):
                raise OSError(f"{library} is damaged; install the package again")
            return library
    return None


def stem(source: Path, target: Target) -> str:
    """The beginning of a library's file name. The hash of its content follows."""
    return f"{source.stem}-{native.fingerprint(source, target.flags)}"


def origin(library: ctypes.CDLL) -> str:
    """Where a loaded library came from, in words."""
    path = Path(library._name)
    return f"prebuilt for {path.parent.name}" if path.is_relative_to(FOLDER) else "compiled here for this processor"


def features() -> frozenset[str]:
    """Instruction sets that all cores have."""
    lines = re.findall(r"^(?:flags|Features)\s*:(.*)$", native.processor(), re.MULTILINE)
    return frozenset.intersection(*(frozenset(line.split()) for line in lines)) if lines else frozenset()


def _glibc() -> tuple[int, ...]:
    """The version of glibc; empty if the C library is another one."""
    name, version = platform.libc_ver()
    return tuple(map(int, re.findall(r"\d+", version)[:2])) if name == "glibc" else ()
