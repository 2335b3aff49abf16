"""One run of ``dape probe --train``, as a child process: train (or go on training), test, write the rows.

python -m dape.evaluation.probe.worker RUN       reads RUN/job.json, writes RUN/rows.jsonl last
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dape.evaluation.probe.config import RecallConfig
from dape.files import locked, write_text
from dape.sweep.worker import JOB, PROGRESS, ROWS, STOPPED
from dape.training.interrupt import Interruption


@dataclass(frozen=True, kw_only=True)
class Job:
    config: RecallConfig
    method: str
    seed: int
    device: str
    threads: int

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / JOB, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "Job":
        given: dict[str, Any] = json.loads((folder / JOB).read_text(encoding="utf-8"))
        return cls(config=RecallConfig.from_plain(given.pop("config")), **given)


def main(folder: Path) -> int:
    parent = os.getppid()
    with locked(folder), Interruption() as interrupted:
        # Whoever started this may be killed; to go on alone would collide with a second attempt.
        return _work(folder, lambda: interrupted() or os.getppid() != parent)


def _work(folder: Path, stop: Callable[[], bool]) -> int:
    import torch

    from dape.evaluation.probe.learn import RecallTrainer, measure
    from dape.provenance import provenance

    job = Job.read(folder)
    torch.set_num_threads(job.threads)
    device = torch.device(job.device)
    trainer = RecallTrainer(folder, job.config, method=job.method, seed=job.seed, device=device)
    if not trainer.run(stop):
        return STOPPED

    def watch(length: int) -> None:
        write_text(folder / PROGRESS, json.dumps({"length": length}))
        if stop():
            sys.exit(STOPPED)

    rows = measure(trainer, run=folder.name, extra={**provenance(), "device": job.device}, watch=watch)
    write_text(folder / ROWS, "".join([row.as_json() + "\n" for row in rows]))
    (folder / PROGRESS).unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1])))
    except (ValueError, OSError, MemoryError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
