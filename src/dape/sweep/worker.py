"""One run of a comparison, as a child process: train (or go on training), evaluate, write its rows.

python -m dape.sweep.worker RUN       reads RUN/job.json, writes RUN/rows.jsonl last
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dape.evaluation.config import EvalConfig
from dape.files import write_text
from dape.sweep.child import PROGRESS, ROWS, STOPPED, as_process, read_job, supervised
from dape.training.run import RunConfig


@dataclass(frozen=True, kw_only=True)
class Job:
    run: RunConfig
    evaluation: EvalConfig
    data_hash: str
    device: str
    variant: str = ""
    """What its rows call the options of the encoding, where these are varied."""
    in_context: bool = False
    """Also measure the in-context gain."""
    extra: dict[str, Any] = field(default_factory=dict)
    """More for its rows."""

    @property
    def threads(self) -> int:
        return self.run.threads

    @classmethod
    def read(cls, folder: Path) -> "Job":
        return read_job(folder, cls)


def main(folder: Path) -> int:
    return supervised(folder, _work)


def _work(folder: Path, stop: Callable[[], bool]) -> int:
    import torch

    from dape.data.store import Corpus
    from dape.training.language_model import LanguageModelTrainer

    job = Job.read(folder)
    torch.set_num_threads(job.run.threads)
    corpus = Corpus.open(Path(job.run.data))
    if corpus.hash != job.data_hash:
        raise ValueError(f"{job.run.data} has changed since the comparison was begun")
    trainer = LanguageModelTrainer(folder, job.run, corpus, device=torch.device(job.device))
    trainer.config.write(folder)
    if not trainer.run(watch=lambda progress: None, stop=stop):
        return STOPPED
    return _evaluate(job, trainer, folder, stop)


def _evaluate(job: Job, trainer: Any, folder: Path, stop: Callable[[], bool]) -> int:
    from dape.evaluation.perplexity import Subject, as_rows, in_context_row, measure
    from dape.evaluation.records import rows_text
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
        variant=job.variant,
        extra={**provenance(), "data": trainer.corpus.name, "device": job.device, **job.extra},
    )

    def watch(length: int, done: int, total: int) -> None:
        write_text(folder / PROGRESS, json.dumps({"length": length, "done": done, "total": total}))
        if stop():
            sys.exit(STOPPED)

    model = trainer.model.eval()
    rows = []
    for measured in measure(model, trainer.corpus.validation, job.evaluation, watch=watch):
        rows += as_rows(measured, subject, job.evaluation)
    if job.in_context:
        rows.append(in_context_row(model, trainer.corpus.validation, subject, job.evaluation.windows))
    write_text(folder / ROWS, rows_text(rows))
    (folder / PROGRESS).unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    as_process(main)
