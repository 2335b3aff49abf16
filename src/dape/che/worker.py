"""One run of ``dape che``, as a child process: train (or go on training), test, write the rows.

python -m dape.che.worker RUN       reads RUN/job.json, writes RUN/rows.jsonl last; RUN/tested.jsonl grows by length
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dape.che.config import CheConfig, Subject
from dape.evaluation.records import append_rows, read_rows, rows_text
from dape.files import write_text
from dape.sweep.child import PROGRESS, ROWS, STOPPED, as_process, read_job, supervised

TESTED = "tested.jsonl"


@dataclass(frozen=True, kw_only=True)
class Job:
    config: CheConfig
    task: str
    method: str
    seed: int
    lr: float
    device: str
    threads: int

    @classmethod
    def read(cls, folder: Path) -> "Job":
        return read_job(folder, cls)


def main(folder: Path) -> int:
    return supervised(folder, _work)


def _work(folder: Path, stop: Callable[[], bool]) -> int:
    import torch

    from dape.che.learn import ChomskyTrainer

    job = Job.read(folder)
    torch.set_num_threads(job.threads)
    subject = Subject(task=job.task, method=job.method, seed=job.seed, lr=job.lr)
    trainer = ChomskyTrainer(folder, job.config, subject, torch.device(job.device))
    if not trainer.run(stop=stop):
        return STOPPED
    return test(trainer, folder, job.device, stop)


def test(trainer: Any, folder: Path, device: str, stop: Callable[[], bool]) -> int:
    """What was tested before an interruption is kept."""
    from dape.che.learn import as_rows, measure
    from dape.provenance import provenance

    task, partial = trainer.task, folder / TESTED
    config, subject = task.config, task.subject
    rows = read_rows(partial, unfinished=True) if partial.exists() else []
    done = {row.length for row in rows if row.metric == "accuracy"}
    lengths = tuple(length for length in config.lengths if length not in done)
    extra = {**provenance(), "device": device}

    def watch(length: int) -> None:
        write_text(folder / PROGRESS, json.dumps({"length": length}))
        if stop():
            sys.exit(STOPPED)

    for measured in measure(trainer.model.eval(), config, task.examples, lengths, watch=watch):
        append_rows(partial, as_rows(measured, config, subject, step=trainer.step, extra=extra))
    rows = [row for row in read_rows(partial) if row.length in config.lengths]
    write_text(folder / ROWS, rows_text(rows))
    partial.unlink()
    (folder / PROGRESS).unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    as_process(main)
