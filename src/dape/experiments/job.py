"""One run of an experiment, as data: what it trains, how it is tested, and its files. No torch here.

RUN/job.json         what the run is to do: a dataclass and its kind
    tested.jsonl     the rows of the tests that are done, while others are not
    rows.jsonl       the rows of all tests: a run that has it is finished
    progress.json    the length that is tested just now
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypedDict

from dape.files import write_text
from dape.reading import as_record, check_seal, read_json, reading, sealed, unsealed
from dape.results.records import Row

JOB, ROWS, TESTED, PROGRESS = "job.json", "rows.jsonl", "tested.jsonl", "progress.json"
Stop = Callable[[], bool]
"""Whether the run has been asked to save and end."""
Watch = Callable[[int, int], None]
"""Told how much of how much there is done."""


@dataclass(frozen=True)
class Test:
    """One of the tests of a trained model."""

    length: int
    metric: str
    """Of its first row; length and metric together tell tests of a run apart."""
    rows: Callable[[Watch], list[Row]]


@dataclass(frozen=True, kw_only=True)
class Job(ABC):
    """What a run does. Subclasses are frozen dataclasses, listed in :mod:`dape.experiments.catalogue`; they import
    torch in their methods only, as whoever plans runs makes jobs too."""

    device: str
    threads: int

    kind: ClassVar[str]

    @abstractmethod
    def learn(self, folder: Path, stop: Stop) -> Any:
        """Train in the folder, or go on training; what :meth:`tests` needs, or None if it was asked to stop."""

    @abstractmethod
    def tests(self, learned: Any, run: str) -> Iterable[Test]:
        """In their order. ``run``: the name that rows give."""


# Files ---------------------------------------------------------------------------------------------------------------


def write_job(folder: Path, job: Job) -> None:
    from dape.experiments.catalogue import job_class

    job_class(job.kind, folder / JOB)  # before any process begins: each of them would fail
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / JOB, json.dumps(sealed({"kind": job.kind, **asdict(job)}), indent=2) + "\n")


def read_job(folder: Path) -> Job:
    from dape.experiments.catalogue import job_class

    given, path = plain_job(folder), folder / JOB
    return as_record(job_class(given.pop("kind", None), path), given, path)


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
