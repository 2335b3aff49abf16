"""``dape bench kernels``: resources that the compiled Triton kernels need. No GPU is needed, and nothing is timed."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from dape.bench.options import WithFile, check_choices, check_common, unique
from dape.bench.records import Column, Record, Results, count, make_table, text
from dape.bench.runner import NotMeasuredError, Once, Plan, Telling, command, say
from dape.errors import UsageError
from dape.extras import install_command

if TYPE_CHECKING:
    from rich.table import Table

Target = Literal["sm_80", "sm_86", "sm_90", "gfx942"]
Dtype = Literal["fp16", "bf16", "fp32"]

SHARED = {"sm_80": 166_912, "sm_86": 101_376, "sm_90": 232_448, "gfx942": 65_536}
"""Most bytes of shared memory of a program. A kernel that needs more compiles, but cannot be launched."""


@dataclass(frozen=True, kw_only=True)
class KernelsBench(WithFile):
    """Resources that the Triton kernels need on GPUs, without such a GPU.

    Shared memory, registers and spilled registers of each kernel, as the compiler reports them. They show whether a
    kernel can be launched, and hint at how well it runs. Its speed needs a GPU (`dape bench attention --device cuda`).
    Needs the extra `triton`; about 20 s for a target.
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


def run(config: KernelsBench) -> int:
    """Returns the exit code: 1 if a kernel does not compile or does not fit, 130 if interrupted."""
    check(config)
    config = unique(config, "targets")
    parts = [
        Once(what=f"compiling for {target}", do=partial(compiled_for, config, target)) for target in config.targets
    ]
    return command(
        config,
        lambda threads: Plan(parts=parts, steps=len(parts)),
        tables,
        failed=lambda results: not all(record["fits"] for record in results.records),
        watch=Telling(say),
    )


def check(config: KernelsBench) -> None:
    check_choices("targets", config.targets, get_args(Target))
    check_choices("dtype", (config.dtype,), get_args(Dtype))
    check_common(config, "heads", "head_dim", "hidden")
    try:
        import triton  # noqa: F401
    except ImportError as error:
        raise UsageError(f"dape bench kernels needs Triton: {install_command('triton')} (Linux)") from error


def compiled_for(config: KernelsBench, target: str) -> list[Record]:
    """The records of all kernels, compiled in a child process: this one may have imported Triton's interpreter."""
    module = [sys.executable, "-W", "ignore", "-m", "dape.bench.compile_kernels"]
    with tempfile.TemporaryDirectory() as cache:
        path = os.pathsep.join(p for p in sys.path if p)
        child = subprocess.run(
            [*module, target, config.dtype, str(config.heads), str(config.head_dim), str(config.hidden)],
            env={**os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": cache, "TRITON_INTERPRET": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
    if child.returncode:
        last_words = child.stderr.strip().splitlines()[-1:] or ["no message"]
        raise NotMeasuredError(f"dape: the kernels do not compile for {target}: {last_words[0]}")
    return [_record(target, json.loads(line)) for line in child.stdout.splitlines()]


def _record(target: str, found: dict[str, Any]) -> Record:
    return {
        "target": target,
        "kernel": found["kernel"],  # forward; the backward pass has three: queries, keys and terms
        "bias": found["bias"],  # ramps: FIRE; cells: given positions with gaps, documents
        # The gradients that this launch computes, where one launch for all of them would need too much memory.
        "parts": ", ".join(name.removeprefix("FOR_").lower() for name in found["for"]),
        "shared_kb": round(found["shared"] / 1024, 1),
        "registers": found["registers"],
        "spilled": found["spilled"],  # bytes; AMD: registers
        "fits": found["shared"] <= SHARED[target],
    }


def tables(results: Results) -> "Iterator[Table]":
    shape = "{heads} heads of {head_dim}, {hidden} hidden units, {dtype}".format(**results.settings)
    columns = [
        text("target"),
        text("kernel"),
        text("bias"),
        text("parts", "for"),
        Column("shared kB", lambda r: f"{r['shared_kb']:.0f}"),
        count("registers"),
        count("spilled"),
        Column("fits", lambda r: "yes" if r["fits"] else "NO"),
    ]
    if results.records:
        caption = "shared memory of a program; registers and spilled registers of a thread"
        title = f"Triton kernels, compiled and not run: {shape}"
        yield make_table(title, caption, results.records, columns, ("target",))
