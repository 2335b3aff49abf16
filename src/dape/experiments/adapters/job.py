"""One run of a study: train the model, or treat it; then measure it. No torch here until it is done."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dape.experiments.adapters.config import BASE, StudyConfig, Treatment, find
from dape.experiments.job import Job, Stop, Test, Watch

if TYPE_CHECKING:
    from dape.evaluation.perplexity import Subject
    from dape.experiments.adapters.tasks import Task
    from dape.results.records import Row

    Learned = tuple[Any, Task]


@dataclass(frozen=True, kw_only=True)
class AdapterJob(Job):
    config: StudyConfig
    treatment: str
    length: int
    seed: int
    base: str
    """Folder of the model."""
    data: str
    """Folder of the text, if there is one."""
    data_hash: str

    kind: ClassVar[str] = "adapter"

    def learn(self, folder: Path, stop: Stop) -> "Learned | None":
        import torch

        from dape.experiments.adapters.tasks import task_of
        from dape.hf import checksums

        task = task_of(self.config, self.data)
        if task.data_hash != self.data_hash:
            raise ValueError(f"{self.data} has changed since the study was begun")
        torch.manual_seed(self.seed)
        model = new_model(self, task) if self.treatment == BASE else treated(self)
        if not _trained(self, model.to(self.device), task, folder, stop):
            return None
        if self.treatment == BASE:
            model.save_pretrained(folder / "model")
            checksums.note(folder / "model")
        return model.eval(), task

    def tests(self, learned: "Learned", run: str) -> Iterator[Test]:
        """Where nothing is trained, each length has the scaling that suits it best."""
        from dape.hf.hosts import scale_rotation
        from dape.hf.scorer import Scorer

        (model, task), config = learned, self.config
        subject = _subject(self, model, task, run)
        treatment = None if self.treatment == BASE else find(self.treatment)
        scaling = treatment.scaling if treatment is not None and treatment.trained == "nothing" else ""

        def rows(length: int, watch: Watch) -> "list[Row]":
            if scaling:
                scale_rotation(model, scaling, length / config.train_length, config.train_length)
            return task.rows(Scorer(model), length, subject, watch=watch)

        for length in config.lengths:
            yield Test(length, task.metric, lambda watch, length=length: rows(length, watch))


# The models ----------------------------------------------------------------------------------------------------------


def new_model(job: AdapterJob, task: "Task") -> Any:
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


def treated(job: AdapterJob) -> Any:
    from transformers import LlamaForCausalLM

    from dape.hf import checksums
    from dape.hf.adapter import extend
    from dape.hf.hosts import drop_rotation, scale_rotation

    checksums.verify(Path(job.base))
    treatment = find(job.treatment)
    model: Any = LlamaForCausalLM.from_pretrained(job.base, local_files_only=True)
    length, reach = job.config.train_length, job.config.reach
    if treatment.method:
        rope = "keep" if treatment.rope == "yarn" and reach == 1 else treatment.rope
        factor = reach if rope == "yarn" else 1.0
        extend(model, treatment.method, rope=rope, factor=factor, train_length=length, **treatment.options)
    elif treatment.rope == "remove":
        drop_rotation(model)
    elif treatment.scaling and treatment.trained != "nothing":
        scale_rotation(model, treatment.scaling, reach, length)
    return model


# Training ------------------------------------------------------------------------------------------------------------


def _trained(job: AdapterJob, model: Any, task: "Task", folder: Path, stop: Stop) -> bool:
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


def _rate(job: AdapterJob) -> float:
    if job.treatment == BASE:
        return job.config.base_lr
    return job.config.lr if find(job.treatment).trained == "adapter" else job.config.fine_tuning_lr


# Measuring -----------------------------------------------------------------------------------------------------------


def _subject(job: AdapterJob, model: Any, task: "Task", run: str) -> "Subject":
    from dape.evaluation.perplexity import Subject
    from dape.provenance import provenance

    return Subject(
        run=run,
        method="rope" if job.treatment == BASE else job.treatment,
        seed=job.seed,
        train_length=job.config.train_length,
        step=job.config.base_steps,
        data_hash=task.data_hash,
        tokenizer=task.tokenizer,
        variant=f"tuned at {job.length}" if job.length else "",
        extra={**provenance(), "data": task.name, "device": job.device, **_facts(job, model)},
    )


def _facts(job: AdapterJob, model: Any) -> dict[str, Any]:
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    treatment: Treatment | None = None if job.treatment == BASE else find(job.treatment)
    nothing = treatment is not None and treatment.trained == "nothing"
    about = "the model as it was trained" if treatment is None else treatment.about
    return {"treatment": job.treatment, "about": about, "tuned_at": job.length, "trained": 0 if nothing else trained}
