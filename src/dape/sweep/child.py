"""What every run in a process of its own has in common: its files, when it must stop, and how it ends."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dape.files import locked, write_text
from dape.training.interrupt import Interruption

STOPPED = 3
"""Exit code of a worker that was asked to stop, or whose parent is gone."""
JOB, ROWS, PROGRESS = "job.json", "rows.jsonl", "progress.json"


def write_job(folder: Path, job: Any) -> None:
    """``job`` is a dataclass that knows its threads."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / JOB, json.dumps({**asdict(job), "threads": job.threads}, indent=2) + "\n")


def read_job(folder: Path) -> dict[str, Any]:
    return json.loads((folder / JOB).read_text(encoding="utf-8"))


def supervised(folder: Path, work: Callable[[Path, Callable[[], bool]], int]) -> int:
    """``work(folder, stop)``, alone in the folder; returns the exit code."""
    parent = os.getppid()
    with locked(folder), Interruption() as interrupted:
        # Whoever started this may be killed; to go on alone would collide with a second attempt.
        return work(folder, lambda: interrupted() or os.getppid() != parent)


def as_process(main: Callable[[Path], int]) -> None:
    """The end of a worker's module: the run named on the command line."""
    try:
        sys.exit(main(Path(sys.argv[1])))
    except (ValueError, OSError, MemoryError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
