"""Compile the Triton kernels for a GPU, which this machine need not have. ``dape bench kernels`` runs, as a process:

    python -m dape.bench.compile_kernels sm_80 fp16 HEADS WIDTH HIDDEN

It prints a line of JSON for every kernel: bytes of shared memory, registers of a thread, and bytes that a thread spills
(AMD: registers).
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dape.ops.attention.triton_kernels import kernels, run
from dape.ops.attention.triton_kernels.plan import Gpu, Sizes

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_86": GPUTarget("cuda", 86, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
GPUS: dict[str, Gpu] = {"sm_80": "large", "sm_86": "small", "sm_90": "large", "gfx942": "amd"}
STORED = {"q", "k", "v", "wa", "w2", "grad"}
"""Pointers to numbers of the dtype of q, k and v."""
SINGLE = {"static", "pre", "out", "softmax", "largest", "inverses", "delta", "rest", "table", "of_rows", "kinks"}
SINGLE |= {f"d_{name}" for name in ("q", "k", "v", "static", "pre", "table", "of_rows", "wa", "w2")}
"""Pointers to float32."""
KINKS = 32
"""Kinks of FIRE's ramp: its default width."""


def cases(sizes: Sizes) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """The kernels that calls launch: name, kernel, and its constants besides sizes and flags."""
    square = {"M": run.ROWS, "N": run.ROWS}
    kinds = {"lag tables": (True, 0), "ramps": (True, KINKS), "cells": (False, 0)}
    for bias, (tables, kinks) in kinds.items():
        flags = {"BIAS": bias, "TABLES": tables, **run.of_kinks(kinks)}
        yield "forward", kernels.forward, {"M": run.ROWS, "N": sizes.forward_keys, **flags}
        yield "queries", kernels.backward_queries, {**square, **flags}
        for what in run.together_or_apart(sizes, "FOR_K", "FOR_V"):
            yield "keys", kernels.backward_keys, {**square, **what, **flags}
        for what in run.together_or_apart(sizes, "FOR_WEIGHTS", "FOR_TERMS", apart=bias != "lag tables"):
            yield "terms", kernels.backward_terms, {**square, **what, **flags}


def compiled(kernel: Any, constants: dict[str, Any], target: GPUTarget, dtype: str, warps: int) -> Any:
    """The kernel as for a launch with aligned addresses and with strides that are multiples of 16."""
    signature, values, facts = {}, {}, {}
    for index, parameter in enumerate(kernel.params):
        name = parameter.name
        if name in constants:
            signature[name], values[index,] = "constexpr", constants[name]
            continue
        if name == "scale":
            signature[name] = "fp32"
            continue
        pointer = {**dict.fromkeys(STORED, f"*{dtype}"), **dict.fromkeys(SINGLE, "*fp32"), "padding": "*u8"}
        signature[name] = pointer.get(name, "i32")
        if not parameter.do_not_specialize:
            facts[index,] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature=signature, constexprs=values, attrs=facts)
    return triton.compile(source, target=target, options={"num_warps": warps, "num_stages": 1})


def figures(kernel: Any, target: GPUTarget) -> dict[str, int]:
    if target.backend == "hip":
        assembly = kernel.asm["amdgcn"]
        registers, spilled = (number(rf"\.vgpr_{what}:\s+(\d+)", assembly) for what in ("count", "spill_count"))
        return {"shared": kernel.metadata.shared, "registers": registers, "spilled": spilled}
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    assembler = "ptxas" if int(target.arch) < 90 else "ptxas-blackwell"
    with tempfile.TemporaryDirectory() as folder:
        ptx = Path(folder) / "kernel.ptx"
        ptx.write_text(kernel.asm["ptx"])
        architecture = re.findall(r"\.target (\w+)", kernel.asm["ptx"])[0]
        command = [tools / assembler, "-v", f"-arch={architecture}", ptx, "-o", Path(folder) / "kernel.cubin"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spilled, registers = number(r"(\d+) bytes spill stores", said), number(r"Used (\d+) registers", said)
    return {"shared": kernel.metadata.shared, "registers": registers, "spilled": spilled}


def number(pattern: str, text: str) -> int:
    return int(re.findall(pattern, text)[0])


def main(name: str, dtype: str, heads: str, width: str, hidden: str) -> None:
    target = TARGETS[name]
    sizes = Sizes(
        heads=int(heads),
        group=1,
        width=int(width),
        values=int(width),
        hidden=int(hidden),
        item_bytes=4 if dtype == "fp32" else 2,
        gpu=GPUS[name],
    )
    usual = run.flags(mix=True, tables=True, causal=True, static=True, padding=True, dtype=dtype, interpreted=False)
    for kind, kernel, own in cases(sizes):
        built = compiled(kernel, {**sizes.constants(), **usual, **own}, target, dtype, sizes.warps)
        purpose = [name for name, value in own.items() if name.startswith("FOR_") and value]
        row = {"kernel": kind, "for": purpose, "bias": own["BIAS"], **figures(built, target)}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
