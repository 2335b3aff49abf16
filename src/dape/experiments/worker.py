"""The process of one run: train (or continue training), test, write the rows.

python -m dape.experiments.worker RUN       reads RUN/job.json, writes RUN/rows.jsonl last

The folder holds the whole state of a run, so that a worker on any machine that can access it can continue.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from dape.experiments.job import PROGRESS, ROWS, TESTED, Job, Stop, Test, read_job
from dape.files import locked, write_text
from dape.results.records import Row, read_rows, rows_text
from dape.training.interrupt import Interruption, stop_with

STOPPED = 3
"""Exit code of a worker that was asked to stop, or whose parent is gone."""


def main(folder: Path) -> int:
    """Lock the folder and do its run. Returns the exit code."""
    stop_with(os.getppid())
    with locked(folder), Interruption() as interrupted:
        return work(folder, interrupted)


def work(folder: Path, stop: Stop) -> int:
    import torch

    job = read_job(folder)
    torch.set_num_threads(job.threads)
    learned = job.learn(folder, stop)
    if learned is None:
        return STOPPED
    return test(job, learned, folder, stop)


def test(job: Job, learned: Any, folder: Path, stop: Stop) -> int:
    """Do the tests that were not done before an interruption, and write all rows. Returns the exit code."""
    partial = folder / TESTED
    rows = read_rows(partial, unfinished=True) if partial.exists() else []
    done = {(row.length, row.metric) for row in rows}
    for each in job.tests(learned, folder.name):
        if (each.length, each.metric) not in done:
            rows += _rows(each, folder, stop)
            write_text(partial, rows_text(rows))
    write_text(folder / ROWS, rows_text(rows))
    for name in (TESTED, PROGRESS):
        (folder / name).unlink(missing_ok=True)
    return 0


def _rows(test: Test, folder: Path, stop: Stop) -> list[Row]:
    def watch(done: int, total: int) -> None:
        write_text(folder / PROGRESS, json.dumps({"length": test.length, "done": done, "total": total}))
        if stop():
            sys.exit(STOPPED)

    watch(0, 1)
    return test.rows(watch)


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1])))
    except (ValueError, OSError, MemoryError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
