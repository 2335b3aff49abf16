"""The origin of a result: machine, versions, commit. No torch here."""

import contextlib
import functools
import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dape._version import __version__


def provenance() -> dict[str, Any]:
    """Facts that are stored with a result row; torch's version and threads only if torch is imported."""
    facts = {"dape": __version__, **machine()}
    torch = sys.modules.get("torch")
    if torch is not None:
        facts |= {"torch": str(torch.__version__), "threads": torch.get_num_threads()}
    return facts


def machine() -> dict[str, Any]:
    """Processor, system, commit, date."""
    return {**_fixed(), "date": datetime.now(UTC).isoformat(timespec="seconds")}


@functools.cache
def _fixed() -> dict[str, Any]:
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "commit": _commit(),
    }


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if found:
            return found[1]
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The commit of the source tree of this file, marked if files have changed since. None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # installed; git would find a repository of the user further up
        return None
    git = ["git", "-C", str(root)]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changes = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
        return commit + (" (with changes)" if changes.strip() else "")
    return None
