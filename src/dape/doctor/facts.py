"""Facts that need no computation: versions, devices, the compiler, caches and extras."""

import importlib.metadata
import os
import subprocess

import torch

from dape._version import __version__
from dape.doctor.section import Line, Section, section
from dape.extras import EXTRAS, install_command
from dape.files import cache_folder
from dape.machine import available_bytes, in_words, usable_cores
from dape.ops.attention.check import why_off
from dape.ops.attention.fused import library
from dape.ops.attention.fused.available import why_not_compiled
from dape.ops.linear import serves
from dape.ops.native import TEXT, find_compiler
from dape.ops.prebuilt import FOLDER, origin
from dape.ops.switch import FUSED_MEANINGS, FUSED_SWITCH, MEANINGS, SWITCH, fused_mode, kernels_mode
from dape.provenance import machine
from dape.results.numbers import count

LIBRARIES = ("numpy", "safetensors", "jaxtyping", "tyro", "rich", "matplotlib", "scipy")
"""Required libraries; those of extras have a section of their own."""


def versions() -> Section:
    found = machine()
    lines = [("dape", f"{__version__}, commit {found['commit'] or 'unknown (installed)'}"), ("python", found["python"])]
    built_for = torch.version.cuda or torch.version.hip
    lines += [("torch", f"{torch.__version__}, built for {f'GPUs ({built_for})' if built_for else 'CPUs'}")]
    lines += [("libraries", ", ".join(f"{name} {_version(name)}" for name in LIBRARIES))]
    return section("Versions", [*lines, ("system", found["platform"])])


def devices() -> Section:
    memory = f"{in_words(available_bytes())} of memory free"
    lines = [
        ("processor", f"{machine()['cpu']}, {usable_cores()} cores for this process, {memory}"),
        ("threads", f"{torch.get_num_threads()} (torch.set_num_threads, OMP_NUM_THREADS, --threads of commands)"),
    ]
    if serves():
        lines += [("linear layers", "float32 by oneDNN: MKL, PyTorch's default, does not use this processor's AVX-512")]
    lines += [(str(gpu), describe(gpu)) for gpu in gpus()]
    return section("Devices", lines if gpus() else [*lines, ("GPU", "none that torch can use")])


def gpus() -> list[torch.device]:
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]


def describe(gpu: torch.device) -> str:
    properties = torch.cuda.get_device_properties(gpu)
    capability = ".".join(map(str, torch.cuda.get_device_capability(gpu)))
    return f"{properties.name}, capability {capability}, {in_words(properties.total_memory)}"


def kernels() -> Section:
    mode = kernels_mode()
    lines: list[Line | tuple[str, str]] = [(SWITCH, f"{mode}: {MEANINGS[mode]}")]
    if FUSED_SWITCH in os.environ:
        lines += [(FUSED_SWITCH, f"{fused_mode()}: {FUSED_MEANINGS[fused_mode()]}")]
    lines += [("compiler", _compiler()), ("C++ kernel", _compiled()), ("prebuilt", _prebuilt()), ("cache", _cache())]
    return section("Kernels", lines)


def _compiler() -> str:
    try:
        compiler = find_compiler()
        said = subprocess.run([compiler, "--version"], capture_output=True, check=False, timeout=10, **TEXT).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return f"{compiler}: {said.partition(chr(10))[0].strip() or 'prints no version'}"


def _compiled() -> str:
    """Where the kernel comes from. Builds it if it is not there yet."""
    if why_not := why_off() or why_not_compiled(torch.empty(0, device="cpu")):
        return f"not used: {why_not}"
    loaded = library.load()
    return f"{origin(loaded)}: {loaded._name}"


def _prebuilt() -> str:
    """The processors for which the package contains kernels."""
    targets = sorted({each.parent.name for each in FOLDER.glob("*/*.so")})
    return f"for {', '.join(targets)}" if targets else "none came with this installation (wheels have them)"


def _cache() -> str:
    try:
        folder = cache_folder()
    except RuntimeError as error:  # the user has no home folder
        return f"none: {error}"
    libraries, checked = (len(list(folder.glob(pattern))) for pattern in ("kernels/*.so", "verified/*.json"))
    found = f"{count(libraries, 'compiled kernel')}, {count(checked, 'file')} of checked GPUs"
    return f"{folder}: {found} (DAPE_CACHE chooses the folder)"


def extras() -> Section:
    lines = []
    for extra in EXTRAS.values():
        missing = extra.missing()
        state = f"missing {', '.join(missing)}: {install_command(extra.name)}" if missing else "installed"
        lines.append((extra.name, f"{extra.purpose}. {state}"))
    return section("Extras", lines)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(version unknown)"
