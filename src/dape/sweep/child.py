"""What every run in a process of its own has in common: its files, when it must stop, and how it ends."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, TypedDict, TypeVar

from dape.files import locked, write_text
from dape.reading import as_record, check_seal, read_json, reading, sealed, unsealed
from dape.training.interrupt import Interruption

STOPPED = 3
"""Exit code of a worker that was asked to stop, or whose parent is gone."""
J = TypeVar("J", bound=Any)
JOB, ROWS, PROGRESS = "job.json", "rows.jsonl", "progress.json"


def write_job(folder: Path, job: Any) -> None:
    """``job`` is a dataclass that knows its threads."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / JOB, json.dumps(sealed({**asdict(job), "threads": job.threads}), indent=2) + "\n")


def read_job(folder: Path, kind: type[J]) -> J:
    given = plain_job(folder)
    known = {f.name for f in fields(kind)}
    return as_record(kind, {name: v for name, v in given.items() if name in known or name != "threads"}, folder / JOB)


def plain_job(folder: Path) -> dict[str, Any]:
    """As it was written, without its checksum."""
    path, advice = folder / JOB, "Remove it; the command that wrote it writes it again."
    given = read_json(path, advice)
    with reading(path, "is damaged", advice):
        check_seal(given)
        as_record(_Threads, {"threads": given.get("threads")}, path)
        return unsealed(given)


class _Threads(TypedDict):
    threads: Annotated[int, range(1, 1 << 16)]


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
