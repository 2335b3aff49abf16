"""One run of a study, as a child process: train the model, or treat it; measure; write the rows.

python -m dape.study.worker RUN       reads RUN/job.json, writes RUN/rows.jsonl last
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.files import write_text
from dape.study.config import BASE, StudyConfig, Treatment, find
from dape.sweep.child import PROGRESS, ROWS, STOPPED, as_process, read_job, supervised

if TYPE_CHECKING:
    from dape.study.tasks import Task


@dataclass(frozen=True, kw_only=True)
class Job:
    config: StudyConfig
    treatment: str
    length: int
    seed: int
    base: str
    """Folder of the model."""
    data: str
    """Folder of the text, if there is one."""
    data_hash: str
    device: str
    threads: int

    @classmethod
    def read(cls, folder: Path) -> "Job":
        return read_job(folder, cls)


def main(folder: Path) -> int:
    return supervised(folder, _work)


def _work(folder: Path, stop: Callable[[], bool]) -> int:
    import torch

    from dape.hf import checksums
    from dape.study.tasks import task_of

    job = Job.read(folder)
    torch.set_num_threads(job.threads)
    task = task_of(job.config, job.data)
    if task.data_hash != job.data_hash:
        raise ValueError(f"{job.data} has changed since the study was begun")
    torch.manual_seed(job.seed)
    model = new_model(job, task) if job.treatment == BASE else treated(job)
    if not _trained(job, model.to(job.device), task, folder, stop):
        return STOPPED
    if job.treatment == BASE:
        model.save_pretrained(folder / "model")
        checksums.note(folder / "model")
    return _evaluate(job, model.eval(), task, folder, stop)


# The models ----------------------------------------------------------------------------------------------------------


def new_model(job: Job, task: "Task") -> Any:
    """A Llama of the library, untrained."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = job.config
    shape = LlamaConfig(
        vocab_size=task.vocabulary,
        hidden_size=config.width,
        intermediate_size=4 * config.width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        max_position_embeddings=config.train_length,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(shape)
    task.begin(model)
    return model


def treated(job: Job) -> Any:
    from transformers import LlamaForCausalLM

    from dape.hf import checksums
    from dape.hf.adapter import extend
    from dape.hf.hosts import scale_rotation

    checksums.verify(Path(job.base))
    treatment = find(job.treatment)
    model: Any = LlamaForCausalLM.from_pretrained(job.base, local_files_only=True)
    length, reach = job.config.train_length, job.config.reach
    if treatment.method:
        rope = "keep" if treatment.rope == "yarn" and reach == 1 else treatment.rope
        factor = reach if rope == "yarn" else 1.0
        extend(model, treatment.method, rope=rope, factor=factor, train_length=length, **treatment.options)
    elif treatment.scaling and treatment.trained != "nothing":
        scale_rotation(model, treatment.scaling, reach, length)
    return model


# Training ------------------------------------------------------------------------------------------------------------


def _trained(job: Job, model: Any, task: "Task", folder: Path, stop: Callable[[], bool]) -> bool:
    from dape.hf.tune import Tuner, Tuning

    config, base = job.config, job.treatment == BASE
    if not base and find(job.treatment).trained == "nothing":
        return True
    length, tokens = (config.train_length, config.base_tokens) if base else (job.length, config.tokens)
    tuning = Tuning(
        length=length,
        steps=config.base_steps if base else config.steps,
        batch=max(1, tokens // length),
        lr=_rate(job),
        seed=job.seed if base else 1000 + job.seed,  # other text than the model was trained on, as far as there is
        weight_decay=0.1 if base else 0.0,
    )
    return Tuner(model, task.lessons(tuning, from_scratch=base), tuning, folder).run(stop=stop)


def _rate(job: Job) -> float:
    if job.treatment == BASE:
        return job.config.base_lr
    return job.config.lr if find(job.treatment).trained == "adapter" else job.config.fine_tuning_lr


# Measuring -----------------------------------------------------------------------------------------------------------


def _evaluate(job: Job, model: Any, task: "Task", folder: Path, stop: Callable[[], bool]) -> int:
    from dape.evaluation.perplexity import Subject
    from dape.evaluation.records import rows_text
    from dape.hf.scorer import Scorer
    from dape.provenance import provenance

    subject = Subject(
        run=folder.name,
        method="rope" if job.treatment == BASE else job.treatment,
        seed=job.seed,
        train_length=job.config.train_length,
        step=job.config.base_steps,
        data_hash=task.data_hash,
        tokenizer=task.tokenizer,
        variant=f"tuned at {job.length}" if job.length else "",
        extra={**provenance(), "data": task.name, "device": job.device, **_facts(job, model)},
    )

    def watch(length: int, done: int, total: int) -> None:
        write_text(folder / PROGRESS, json.dumps({"length": length, "done": done, "total": total}))
        if stop():
            sys.exit(STOPPED)

    rows = [row for lengths in _prepared(job, model) for row in task.rows(Scorer(model), lengths, subject, watch=watch)]
    write_text(folder / ROWS, rows_text(rows))
    (folder / PROGRESS).unlink(missing_ok=True)
    return 0


def _prepared(job: Job, model: Any) -> Iterator[tuple[int, ...]]:
    """All lengths at once; where nothing is trained, one after the other, each with the scaling that suits it best."""
    from dape.hf.hosts import scale_rotation

    config = job.config
    treatment = None if job.treatment == BASE else find(job.treatment)
    if treatment is None or not treatment.scaling or treatment.trained != "nothing":
        yield config.lengths
        return
    for length in config.lengths:
        scale_rotation(model, treatment.scaling, length / config.train_length, config.train_length)
        yield (length,)


def _facts(job: Job, model: Any) -> dict[str, Any]:
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    treatment: Treatment | None = None if job.treatment == BASE else find(job.treatment)
    nothing = treatment is not None and treatment.trained == "nothing"
    about = "the model as it was trained" if treatment is None else treatment.about
    return {"treatment": job.treatment, "about": about, "tuned_at": job.length, "trained": 0 if nothing else trained}


if __name__ == "__main__":
    as_process(main)
