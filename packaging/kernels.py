"""Compile the C++ kernels for the processors of ``dape.ops.prebuilt.TARGETS``. `make wheel` runs this.

python packaging/kernels.py FOLDER

Targets without a compiler are left out, with a message that names the Debian package.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dape.files import sha256
from dape.ops import native, prebuilt
from dape.ops.attention.fused import kinds
from dape.ops.attention.fused.library import SOURCE

SOURCES = (SOURCE, *map(kinds.source, kinds.STRUCTURES))
LINKED = ("-Wl,--as-needed",)  # do not link libstdc++ and libgcc, which are not used


def main(out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for target in prebuilt.TARGETS:
        compiler = compiler_for(target)
        if compiler is None:
            print(f"{target.name}: left out, there is no {target.machine}-linux-gnu-g++ (Debian: {package(target)})")
            continue
        size = sum(compile_one(source, target, compiler, out / target.name) for source in SOURCES)
        print(f"{target.name}: {len(SOURCES)} libraries, {size / 1000:.0f} kB, by {compiler}")


def compiler_for(target: prebuilt.Target) -> str | None:
    own = ["g++"] if target.machine == platform.machine() and sys.platform == "linux" else []
    return next(filter(None, map(shutil.which, [f"{target.machine}-linux-gnu-g++", *own])), None)


def package(target: prebuilt.Target) -> str:
    return f"g++-{target.machine.replace('_', '-')}-linux-gnu"


def compile_one(source: Path, target: prebuilt.Target, compiler: str, folder: Path) -> int:
    """Compile into the folder, under a name with the library's hash. Returns its size in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        made = native.compiled(source, compiler, target.flags, temporary, linked=LINKED)
        check(made)
        library = folder / f"{prebuilt.stem(source, target)}-{sha256(made)}.so"
        shutil.move(made, library)
    library.chmod(0o644)
    return library.stat().st_size


def check(library: Path) -> None:
    """SystemExit unless the library needs only an old enough C library, and OpenMP's functions, which torch loads."""
    symbols = subprocess.run(
        ["readelf", "-W", "-d", "--dyn-syms", str(library)],
        check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"},
    ).stdout  # fmt: skip
    others = set(re.findall(r"\(NEEDED\).*\[(.+)\]", symbols)) - {"libc.so.6", "libm.so.6", "ld-linux-aarch64.so.1"}
    undefined = re.findall(r" (\S+) +\S+ +UND (\S+)", symbols)
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"@GLIBC_([\d.]+)", symbols)}
    unknown = [
        name for binding, name in undefined
        if binding == "GLOBAL" and "@GLIBC_" not in name and not name.startswith(("GOMP_", "omp_"))
    ]  # fmt: skip
    newest = max(versions, default=())
    if others or unknown or newest > prebuilt.GLIBC:
        raise SystemExit(f"{library.name} needs {others or ''} {unknown or ''} glibc {newest}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
