"""``dape doctor``: what is here, what is missing, and whether it computes rightly."""

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
    "dape: no GPU that torch can use, so there is nothing to check here. `dape bench kernels` compiles the Triton "
    "kernels without one."
)


@tyro.conf.configure(tyro.conf.FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Say what is here and what is missing, and test attention against its definition.

    Versions, devices, compiler and caches; every extra, what it is for and how to install it; which implementation of
    attention `auto` takes for which encoding, and why; a self-test of a few seconds. The exit code is 1 if the test
    fails.

    The Triton kernels for GPUs have never run on one here. They are compared with the definition on yours before
    `auto` takes them, once for each class of calls. --gpu does this for many classes at once, compares whole calls of
    attention, too, and writes a report: please send it with a bug report. Most of its time goes into compiling.

    The environment variable DAPE_KERNELS decides about hand-written kernels: off (none, neither C++ nor Triton),
    verify (the default: Triton kernels are checked before use) or trust (used unchecked).
    """

    gpu: bool = False
    """Check the Triton kernels on every kind of GPU of this machine. Without a GPU: exit code 1."""
    out: Path | None = None
    """Also write the report: the text into this file, JSON into a file of this name with .json added (--gpu:
    dape-doctor.txt unless said otherwise)."""


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
    print("dape: something is wrong; lines with FAILED say what", file=sys.stderr)
    return 1


def _shown(sections: Iterable["Section"]) -> Iterable["Section"]:
    for number, each in enumerate(sections):
        print(("\n" if number else "") + each.as_text(), flush=True)
        yield each


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
