"""Cores, threads and memory of this machine. No torch here."""

import contextlib
import os
import re
import sys
from pathlib import Path

from dape.errors import UsageError

GB = 10**9
THREADS_PER_CORE = 4
FEWEST_ALLOWED = 64
"""Threads that are allowed even on a machine with few cores."""


def usable_cores() -> int:
    """Cores that this process may run on. In a container these can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_threads(wanted: int) -> None:
    """Raise UsageError for too many threads: thousands end in a segmentation fault of the OpenMP library."""
    most = max(FEWEST_ALLOWED, THREADS_PER_CORE * usable_cores())
    if not 1 <= wanted <= most:
        raise UsageError(f"`threads` must be at least 1 and here at most {most} ({usable_cores()} cores), got {wanted}")


def available_bytes() -> int:
    """Memory that is available without swapping, within the limit of the control group (container), if any."""
    candidates = [_meminfo_available(), _cgroup_available()]
    known = [c for c in candidates if c is not None]
    return min(known) if known else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _meminfo_available() -> int | None:
    with contextlib.suppress(OSError):
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        return int(found[1]) * 1024 if found else None
    return None


def _cgroup_available(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
        return int((root / "memory.max").read_text()) - int((root / "memory.current").read_text())
    return None


def in_words(count: float) -> str:
    """Bytes with a unit: 3.2 TB."""
    for unit, size in (("EB", 10**18), ("PB", 10**15), ("TB", 10**12), ("GB", GB), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"


def peak_bytes() -> int:
    """The most memory that this process has used so far."""
    with contextlib.suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        if found:
            return int(found[1]) * 1024
    # Not on Linux, where a child inherits the ru_maxrss of the process that started it.
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
