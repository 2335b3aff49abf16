"""Outcomes of the self-check in the user's cache: a file for each GPU model, set of versions and state of the sources.

Imports triton only to read its version.
"""

import functools
import hashlib
import json
import re
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from dape._version import __version__
from dape.files import cache_folder, sha256, write_text
from dape.ops.native import own_folder
from dape.reading import Sha256, read_record, sealed

FOLDER = "verified"


@dataclass(frozen=True)
class Outcome:
    """The outcome of the check of a class."""

    ok: bool
    words: str
    """The largest error, or what was wrong."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Everything that decides what kernels compute, except for the class of a call."""

    gpu: str
    capability: str
    torch: str
    triton: str
    dape: str
    sources: Sha256
    """A hash of the kernels, of the code that launches them, and of the check."""

    @property
    def file(self) -> Path:
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]
        name = re.sub(r"[^a-z0-9]+", "-", self.gpu.lower()).strip("-")[:60]
        return cache_folder() / FOLDER / f"{name}-{digest}.json"


@dataclass(frozen=True, kw_only=True)
class _Stored:
    machine: Machine
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """By class."""


def machine_of(device: torch.device) -> Machine:
    import triton

    gpu, capability = "interpreter", "none"
    if device.type == "cuda":
        gpu = torch.cuda.get_device_name(device)
        capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return Machine(
        gpu=gpu,
        capability=capability,
        torch=str(torch.__version__),
        triton=str(triton.__version__),
        dape=__version__,
        sources=sources(),
    )


@functools.cache
def sources() -> str:
    """A hash of every file in this folder, and of the engine that calls them."""
    here = Path(__file__).parent
    engine = [here.parent / "engines" / name for name in ("base.py", "triton.py")]
    files = [*sorted(here.glob("*.py")), *engine]
    return hashlib.sha256("".join(f"{file.name} {sha256(file)}\n" for file in files).encode()).hexdigest()


def read_outcomes(machine: Machine) -> dict[str, Outcome]:
    """The outcomes in the machine's file; empty if there is no file. A damaged or foreign file causes a warning, and
    the next outcome replaces it."""
    file = machine.file
    if not file.is_file():
        return {}
    try:
        own_folder(file.parent)
        stored = read_record(file, _Stored)
        if stored.machine != machine:
            raise ValueError(f"{file}: is about another GPU or other versions")
    except (ValueError, OSError) as error:
        message = f"outcomes of earlier checks of dape's Triton kernels are not used: {error}. Checking again"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return {}
    return stored.outcomes


def write_outcome(machine: Machine, name: str, outcome: Outcome) -> None:
    """Add an outcome to the machine's file. If two processes write at the same time, one outcome is lost, and checked
    again later. Raises OSError, or RuntimeError without a home directory."""
    own_folder(machine.file.parent)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first reading has already warned
        known = read_outcomes(machine)
    content = _Stored(machine=machine, outcomes={**known, name: outcome})
    write_text(machine.file, json.dumps(sealed(asdict(content)), indent=1) + "\n")
