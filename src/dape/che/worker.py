"""One run of ``dape che``, as a child process: train (or go on training), test, write the rows.

python -m dape.che.worker RUN       reads RUN/job.json, writes RUN/rows.jsonl last; RUN/tested.jsonl grows by length
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dape.che.config import CheConfig, Subject
from dape.evaluation.records import append_rows, read_rows
from dape.files import locked, write_text
from dape.sweep.worker import JOB, PROGRESS, ROWS, STOPPED
from dape.training.interrupt import Interruption

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

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / JOB, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "Job":
        given: dict[str, Any] = json.loads((folder / JOB).read_text(encoding="utf-8"))
        return cls(config=CheConfig.from_plain(given.pop("config")), **given)


def main(folder: Path) -> int:
    parent = os.getppid()
    with locked(folder), Interruption() as interrupted:
        # Whoever started this may be killed; to go on alone would collide with a second attempt.
        return _work(folder, lambda: interrupted() or os.getppid() != parent)


def _work(folder: Path, stop: Callable[[], bool]) -> int:
    import torch

    from dape.che.learn import Trainer

    job = Job.read(folder)
    torch.set_num_threads(job.threads)
    subject = Subject(task=job.task, method=job.method, seed=job.seed, lr=job.lr)
    trainer = Trainer(folder, job.config, subject, torch.device(job.device))
    if not trainer.run(stop):
        return STOPPED
    return test(trainer, folder, job.device, stop)


def test(trainer: Any, folder: Path, device: str, stop: Callable[[], bool]) -> int:
    """What was tested before an interruption is kept."""
    from dape.che.learn import as_rows, measure
    from dape.provenance import provenance

    config, subject, partial = trainer.config, trainer.subject, folder / TESTED
    rows = read_rows(partial) if partial.exists() else []
    done = {row.length for row in rows if row.metric == "accuracy"}
    lengths = tuple(length for length in config.lengths if length not in done)
    extra = {**provenance(), "device": device}

    def watch(length: int) -> None:
        write_text(folder / PROGRESS, json.dumps({"length": length}))
        if stop():
            sys.exit(STOPPED)

    for measured in measure(trainer.model.eval(), config, trainer.task, lengths, watch=watch):
        append_rows(partial, as_rows(measured, config, subject, step=trainer.step, extra=extra))
    rows = [row for row in read_rows(partial) if row.length in config.lengths]
    write_text(folder / ROWS, "".join(row.as_json() + "\n" for row in rows))
    partial.unlink()
    (folder / PROGRESS).unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1])))
    except (ValueError, OSError, MemoryError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
