"""One run of ``dape probe --train``, as a child process: train (or go on training), test, write the rows.

python -m dape.evaluation.probe.worker RUN       reads RUN/job.json, writes RUN/rows.jsonl last
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dape.evaluation.probe.config import RecallConfig
from dape.evaluation.records import rows_text
from dape.files import write_text
from dape.sweep.child import PROGRESS, ROWS, STOPPED, as_process, read_job, supervised


@dataclass(frozen=True, kw_only=True)
class Job:
    config: RecallConfig
    method: str
    seed: int
    device: str
    threads: int

    @classmethod
    def read(cls, folder: Path) -> "Job":
        return read_job(folder, cls)


def main(folder: Path) -> int:
    return supervised(folder, _work)


def _work(folder: Path, stop: Callable[[], bool]) -> int:
    import torch

    from dape.evaluation.probe.learn import RecallTrainer, measure, subject_of
    from dape.provenance import provenance

    job = Job.read(folder)
    torch.set_num_threads(job.threads)
    device = torch.device(job.device)
    trainer = RecallTrainer(folder, job.config, method=job.method, seed=job.seed, device=device)
    if not trainer.run(stop=stop):
        return STOPPED

    def watch(length: int) -> None:
        write_text(folder / PROGRESS, json.dumps({"length": length}))
        if stop():
            sys.exit(STOPPED)

    subject = subject_of(trainer, run=folder.name, extra={**provenance(), "device": job.device})
    rows = measure(trainer.model.eval(), job.config, subject, watch=watch)
    write_text(folder / ROWS, rows_text(rows))
    (folder / PROGRESS).unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    as_process(main)
