"""One run of a comparison, as a child process: train (or go on training), evaluate, write its rows.

python -m dape.sweep.worker RUN       reads RUN/job.json, writes RUN/rows.jsonl last
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dape.evaluation.config import EvalConfig
from dape.files import locked, write_text
from dape.models.config import DecoderConfig
from dape.training.config import TrainConfig
from dape.training.interrupt import Interruption
from dape.training.run import RunConfig

STOPPED = 3
"""Exit code of a worker that was asked to stop, or whose parent is gone."""
JOB, ROWS, PROGRESS = "job.json", "rows.jsonl", "progress.json"


@dataclass(frozen=True, kw_only=True)
class Job:
    run: RunConfig
    evaluation: EvalConfig
    data: str
    """A prepared folder."""
    data_hash: str
    device: str

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / JOB, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "Job":
        given: dict[str, Any] = json.loads((folder / JOB).read_text(encoding="utf-8"))
        run, evaluation = given["run"], given["evaluation"]
        return cls(
            run=RunConfig(
                model=DecoderConfig(**run["model"]),
                train=TrainConfig(**run["train"]),
                data=run["data"],
                threads=run["threads"],
            ),
            evaluation=EvalConfig(**{**evaluation, "lengths": tuple(evaluation["lengths"])}),
            data=given["data"],
            data_hash=given["data_hash"],
            device=given["device"],
        )


def main(folder: Path) -> int:
    parent = os.getppid()
    with locked(folder), Interruption() as interrupted:
        # Whoever started this may be killed; to go on alone would collide with a second attempt.
        return _work(folder, lambda: interrupted() or os.getppid() != parent)


def _work(folder: Path, stop: Callable[[], bool]) -> int:
    import torch

    from dape.data.store import Corpus
    from dape.training.loop import Trainer

    job = Job.read(folder)
    torch.set_num_threads(job.run.threads)
    corpus = Corpus.open(Path(job.data))
    if corpus.hash != job.data_hash:
        raise ValueError(f"{job.data} has changed since the comparison was begun")
    trainer = Trainer(folder, job.run, corpus, device=torch.device(job.device), trackers=[])
    trainer.config.write(folder)
    if not trainer.run(watch=lambda progress: None, stop=stop):
        return STOPPED
    return _evaluate(job, trainer, folder, stop)


def _evaluate(job: Job, trainer: Any, folder: Path, stop: Callable[[], bool]) -> int:
    from dape.evaluation.perplexity import Subject, as_rows, measure
    from dape.provenance import provenance

    config = trainer.config
    subject = Subject(
        run=folder.name,
        method=config.model.encoding,
        seed=config.train.seed,
        train_length=config.model.train_length,
        step=trainer.step,
        data_hash=trainer.corpus.hash,
        tokenizer=trainer.corpus.tokenizer.name,
        extra={**provenance(), "data": trainer.corpus.name, "device": job.device},
    )

    def watch(length: int, done: int, total: int) -> None:
        write_text(folder / PROGRESS, json.dumps({"length": length, "done": done, "total": total}))
        if stop():
            sys.exit(STOPPED)

    model = trainer.model.eval()
    lines = []
    for measured in measure(model, trainer.corpus.validation, job.evaluation, watch=watch):
        lines += [row.as_json() for row in as_rows(measured, subject, job.evaluation)]
    write_text(folder / ROWS, "\n".join(lines) + "\n")
    (folder / PROGRESS).unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1])))
    except (ValueError, OSError, MemoryError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
