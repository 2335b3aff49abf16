"""``dape doctor``: what is installed, what is missing, and whether attention computes the right numbers."""

import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from dape.doctor.section import WIDTH, json_file
from dape.files import check_writable_file

if TYPE_CHECKING:
    from dape.doctor.section import Section

GPU_REPORT = Path("dape-doctor.txt")
NO_GPU = (
    "dape: no GPU that torch can use, so there is nothing to check. `dape bench kernels` compiles the Triton kernels "
    "without a GPU."
)


@tyro.conf.configure(tyro.conf.FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Show what is installed and what is missing, and test attention against its definition.

    Prints versions, devices, compiler and caches; what each extra is for and how to install it; which implementation of
    attention `auto` takes for which encoding, and why. A self-test of a few seconds follows; if it fails, the exit code
    is 1.

    The developers had no GPU to run the Triton kernels on. Before `auto` uses the kernels on your GPU, they are
    compared with the definition there, once for each class of calls. --gpu checks many classes at once, compares whole
    calls of attention, and writes a report: please send it with a bug report. Most of the time goes into compiling.

    The environment variable DAPE_KERNELS decides about hand-written kernels: off (none, neither C++ nor Triton),
    verify (the default: Triton kernels are checked before use) or trust (used unchecked).
    """

    gpu: bool = False
    """Check the Triton kernels on one GPU of each kind in this machine. Without a GPU the exit code is 1."""
    out: Path | None = None
    """Also write the report: text into this file, JSON into this file name with .json appended. With --gpu, by default
    dape-doctor.txt."""


def run(config: Doctor) -> int:
    out = GPU_REPORT if config.gpu and config.out is None else config.out
    if out is not None:
        check_writable_file(out, "--out")
        check_writable_file(json_file(out), "--out")
    from dape.doctor import run as doctor

    examination = doctor.examine_gpus(_say) if config.gpu else doctor.examine()
    sections = list(_shown(examination))
    if config.gpu and not sections:
        print(textwrap.fill(NO_GPU, WIDTH), file=sys.stderr)
        return 1
    if out is not None:
        print(f"\nwrote {' and '.join(map(str, doctor.write_report(out, sections)))}", file=sys.stderr)
    if all(each.ok for each in sections):
        return 0
    print("dape: something is wrong; see the lines with FAILED", file=sys.stderr)
    return 1


def _shown(sections: Iterable["Section"]) -> Iterable["Section"]:
    for number, each in enumerate(sections):
        print(("\n" if number else "") + each.as_text(), flush=True)
        yield each


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
