"""``dape bench kernels``: what compiling shows of the Triton kernels. No GPU is needed, and none is timed."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from dape.bench.options import INTERRUPTED, check_choices, check_counts
from dape.bench.records import new_table, print_table, write_json
from dape.errors import UsageError
from dape.files import check_writable_file
from dape.provenance import machine

if TYPE_CHECKING:
    from rich.table import Table

Target = Literal["sm_80", "sm_86", "sm_90", "gfx942"]
Dtype = Literal["fp16", "bf16", "fp32"]

SHARED = {"sm_80": 166_912, "sm_86": 101_376, "sm_90": 232_448, "gfx942": 65_536}
"""Bytes a program may have: a kernel that needs more compiles, but cannot be launched."""


@dataclass(frozen=True, kw_only=True)
class KernelsBench:
    """What compiling shows of the Triton kernels, for GPUs that need not be here.

    Shared memory, registers and spilled registers of each kernel, as the compiler reports them. It says whether a
    kernel can be launched and hints at how well, not how fast it is: that takes a GPU (`dape bench attention --device
    cuda`). Needs the extra `triton`; about 20 s for a target.
    """

    targets: tuple[Target, ...] = ("sm_80", "sm_90", "gfx942")
    """Kinds of GPU: sm_80 (A100, A800), sm_86 (GeForce RTX 30, A10), sm_90 (H100), gfx942 (MI300)."""
    dtype: Dtype = "fp16"
    """Precision of queries, keys and values."""
    heads: int = 12
    """Attention heads."""
    head_dim: int = 64
    """Width of one head."""
    hidden: int = 32
    """Hidden units of DAPE's f."""
    json: Path | None = None
    """Also write the results to this file."""


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    target: str
    kernel: str
    """forward; queries, keys and terms make up the backward pass."""
    bias: str
    """lag tables, or cells for biases that depend on more than the lag (FIRE)."""
    parts: str
    """What of its work, where one kernel would need too much memory for all of it."""
    shared_kb: float
    registers: int
    spilled: int
    """Bytes; AMD: registers."""
    fits: bool
    """Whether the target has that much shared memory."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run(config: KernelsBench) -> int:
    """Returns the exit code: 1 if a kernel does not compile or does not fit, 130 if interrupted."""
    check(config)
    rows: list[KernelRow] = []
    complete = True
    try:
        for target in dict.fromkeys(config.targets):
            print(f"compiling for {target}", file=sys.stderr, flush=True)
            rows += compiled_for(config, target)
    except KeyboardInterrupt:
        complete = False
        print("interrupted: only what was finished until then is reported", file=sys.stderr)
    except CompilationError as error:
        print(f"dape: {error}", file=sys.stderr)
        return 1
    settings = {**asdict(config), "json": None, **machine(), "complete": complete}
    if config.json is not None:
        write_json(config.json, settings, rows)
        print(f"wrote {config.json}", file=sys.stderr)
    if rows:
        print_table(make_table(rows, config))
    if not complete:
        return INTERRUPTED
    return 0 if all(row.fits for row in rows) else 1


def check(config: KernelsBench) -> None:
    check_choices("targets", config.targets, get_args(Target))
    check_choices("dtype", (config.dtype,), get_args(Dtype))
    check_counts(config, "heads", "head_dim", "hidden")
    if config.json is not None:
        check_writable_file(config.json, "--json")
    try:
        import triton  # noqa: F401
    except ImportError as error:
        raise UsageError("dape bench kernels needs Triton: pip install 'dape[triton]' (Linux)") from error


class CompilationError(Exception):
    pass


def compiled_for(config: KernelsBench, target: str) -> list[KernelRow]:
    """In a child process: this one may have imported Triton as an interpreter."""
    sizes = (config.heads, config.head_dim, config.hidden)
    with tempfile.TemporaryDirectory() as cache:
        path = os.pathsep.join(p for p in sys.path if p)
        child = subprocess.run(
            [
                sys.executable,
                "-W",
                "ignore",
                "-m",
                "dape.bench.compile_kernels",
                target,
                config.dtype,
                *map(str, sizes),
            ],
            env={**os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": cache, "TRITON_INTERPRET": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
    if child.returncode:
        last_words = child.stderr.strip().splitlines()[-1:] or ["no message"]
        raise CompilationError(f"the kernels do not compile for {target}: {last_words[0]}")
    return [_row(target, json.loads(line)) for line in child.stdout.splitlines()]


def _row(target: str, found: dict[str, Any]) -> KernelRow:
    return KernelRow(
        target=target,
        kernel=found["kernel"],
        bias="lag tables" if found["tables"] else "cells",
        parts=", ".join(name.removeprefix("FOR_").lower() for name in found["for"]),
        shared_kb=round(found["shared"] / 1024, 1),
        registers=found["registers"],
        spilled=found["spilled"],
        fits=found["shared"] <= SHARED[target],
    )


def make_table(rows: Sequence[KernelRow], config: KernelsBench) -> "Table":
    shape = f"{config.heads} heads of {config.head_dim}, {config.hidden} hidden units, {config.dtype}"
    title = f"Triton kernels, compiled and not run: {shape}"
    table = new_table(title, "shared memory of a program, registers of a thread, and what of them is spilled")
    for header in ("target", "kernel", "bias", "for"):
        table.add_column(header, no_wrap=True)
    for header in ("shared kB", "registers", "spilled", "fits"):
        table.add_column(header, justify="right", no_wrap=True)
    previous = None
    for row in rows:
        if previous not in (None, row.target):
            table.add_section()
        numbers = (f"{row.shared_kb:.0f}", str(row.registers), str(row.spilled), "yes" if row.fits else "NO")
        table.add_row(row.target, row.kernel, row.bias, row.parts, *numbers)
        previous = row.target
    return table
