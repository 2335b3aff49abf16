import os
import subprocess
import sys
from collections.abc import Callable

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def isolated(tmp_path, monkeypatch) -> None:
    """A cache of its own and errors without tracebacks, whatever the environment says."""
    monkeypatch.setenv("DAPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DAPE_DEBUG", raising=False)


@pytest.fixture
def dape_process() -> Run:
    """Run ``dape`` in a process of its own, its output captured as a pipe; keyword arguments set the environment."""

    def run(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
        inherited = {
            k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "DAPE_DEBUG")
        }
        return subprocess.run(
            [sys.executable, "-m", "dape", *argv], env={**inherited, **environment}, capture_output=True, text=True
        )

    return run
