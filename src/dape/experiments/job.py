"""One run of an experiment, as data: how it is trained and tested, and its files. No torch here.

RUN/job.json         the job: a dataclass and its kind
    tested.jsonl     the rows of finished tests, until all tests are finished
    rows.jsonl       the rows of all tests, which mark the run as finished
    progress.json    the length that is being tested
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
"""Whether the run has been asked to save and stop."""
Watch = Callable[[int, int], None]
"""Called with how much is done, and of how much."""


@dataclass(frozen=True)
class Test:
    """One of the tests of a trained model."""

    length: int
    metric: str
    """The metric of its first row. Length and metric identify a test of a run."""
    rows: Callable[[Watch], list[Row]]


@dataclass(frozen=True, kw_only=True)
class Job(ABC):
    """The work of a run.

    Subclasses are frozen dataclasses, listed in :mod:`dape.experiments.catalogue`. They import torch only in methods,
    because the process that plans runs creates jobs too.
    """

    device: str
    threads: int

    kind: ClassVar[str]

    @abstractmethod
    def learn(self, folder: Path, stop: Stop) -> Any:
        """Train in the folder, or continue training. Returns what :meth:`tests` needs, or None if asked to stop."""

    @abstractmethod
    def tests(self, learned: Any, run: str) -> Iterable[Test]:
        """The tests, in order. ``run`` is the name of the run in rows."""


# Files ---------------------------------------------------------------------------------------------------------------


def write_job(folder: Path, job: Job) -> None:
    from dape.experiments.catalogue import job_class

    job_class(job.kind, folder / JOB)  # an unknown kind fails here, rather than in every worker
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / JOB, json.dumps(sealed({"kind": job.kind, **asdict(job)}), indent=2) + "\n")


def read_job(folder: Path) -> Job:
    from dape.experiments.catalogue import job_class

    given, path = plain_job(folder), folder / JOB
    return as_record(job_class(given.pop("kind", None), path), given, path)


def plain_job(folder: Path) -> dict[str, Any]:
    """The contents of job.json, checked and without its checksum."""
    path, advice = folder / JOB, "Remove it; the command that wrote it writes it again."
    given = read_json(path, advice)
    with reading(path, "is damaged", advice):
        check_seal(given)
        as_record(_Threads, {"threads": given.get("threads")}, path)
        return unsealed(given)


class _Threads(TypedDict):
    threads: Annotated[int, range(1, 1 << 16)]
