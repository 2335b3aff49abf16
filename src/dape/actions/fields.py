"""Arguments that several functions and commands have in common."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class OfCheckpoint:
    checkpoint: Path
    """A run's folder (its newest checkpoint), or one checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Jobs:
    jobs: int | None = None
    """Runs at the same time; by default one per core, or one on a GPU."""


@dataclass(frozen=True, kw_only=True)
class OnDevice:
    device: str = "auto"
    """Where to compute: cpu, cuda, ...; auto takes a GPU if there is one."""


@dataclass(frozen=True, kw_only=True)
class OnThreads(OnDevice):
    threads: int | None = None
    """Torch threads on the CPU; by default torch decides."""
