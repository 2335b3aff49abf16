"""A run that trains a language model and measures its perplexity by length. No torch here."""

import json
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dape.evaluation.config import EvalConfig
from dape.experiments.grid import Effort
from dape.experiments.job import Job, Stop, Test, Watch
from dape.models.config import DecoderConfig
from dape.training.config import TrainConfig
from dape.training.run import FREE_TO_CHANGE, RunConfig, read_metrics

if TYPE_CHECKING:
    from dape.evaluation.perplexity import Subject
    from dape.results.records import Row
    from dape.training.language_model import LanguageModelTrainer


@dataclass(frozen=True, kw_only=True)
class LanguageModelJob(Job):
    run: RunConfig
    evaluation: EvalConfig
    data_hash: str
    variant: str = ""
    """The name of the encoding's options in rows, where these are varied."""
    in_context: bool = False
    """Also measure the in-context gain."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further entries of ``extra`` in its rows."""

    kind: ClassVar[str] = "language-model"

    def learn(self, folder: Path, stop: Stop) -> "LanguageModelTrainer | None":
        import torch

        from dape.data.store import Corpus
        from dape.training.language_model import LanguageModelTrainer

        corpus = Corpus.open(Path(self.run.data))
        if corpus.hash != self.data_hash:
            raise ValueError(f"{self.run.data} has changed since the comparison was begun")
        trainer = LanguageModelTrainer(folder, self.run, corpus, device=torch.device(self.device))
        trainer.config.write(folder)
        return trainer if trainer.run(watch=lambda progress: None, stop=stop) else None

    def tests(self, learned: "LanguageModelTrainer", run: str) -> Iterator[Test]:
        from dape.evaluation.perplexity import as_rows, in_context_row, measure

        model, stream = learned.model.eval(), learned.corpus.validation
        subject = self._subject(learned, run)

        def perplexity(length: int, watch: Watch) -> "list[Row]":
            config = replace(self.evaluation, lengths=(length,))
            (measured,) = measure(model, stream, config, watch=lambda _, done, total: watch(done, total))
            return as_rows(measured, subject, config)

        for length in sorted(set(self.evaluation.lengths)):
            metric = "nll" if self.evaluation.protocol == "per_position" else "perplexity"
            yield Test(length, metric, lambda watch, length=length: perplexity(length, watch))
        if self.in_context:
            yield Test(
                subject.train_length,
                "in_context_gain",
                lambda _: [in_context_row(model, stream, subject, self.evaluation.windows)],
            )

    def _subject(self, trainer: "LanguageModelTrainer", run: str) -> "Subject":
        from dape.evaluation.perplexity import Subject
        from dape.provenance import provenance

        config = trainer.config
        return Subject(
            run=run,
            method=config.model.encoding,
            seed=config.train.seed,
            train_length=config.model.train_length,
            step=trainer.step,
            data_hash=trainer.corpus.hash,
            tokenizer=trainer.corpus.tokenizer.name,
            variant=self.variant,
            extra={**provenance(), "data": trainer.corpus.name, "device": self.device, **costs(trainer), **self.extra},
        )


def costs(trainer: "LanguageModelTrainer") -> dict[str, Any]:
    """Tokens trained on, parameters of the encoding, and the median time of a step."""
    from dape.training.cost import encoding_parameters

    config, found = trainer.config, median_step_ms(trainer.folder, trainer.task.tokens)
    return {
        "train_tokens": trainer.step * trainer.task.tokens,
        "encoding_parameters": encoding_parameters(config.model),
        **({} if found is None else {"step_ms": found}),
    }


def median_step_ms(folder: Path, tokens: int) -> float | None:
    """The median over the lines of metrics.jsonl, without the first, which includes the warm-up."""
    speeds = [line["tokens_per_second"] for line in read_metrics(folder) if line.get("tokens_per_second")]
    return 1e3 * tokens / statistics.median(speeds[1:] or speeds) if speeds else None


# For experiments with such runs --------------------------------------------------------------------------------------


def language_effort(model: DecoderConfig, train: TrainConfig, evaluation: EvalConfig) -> Effort:
    """The work of such a run."""
    tests = {length: float(evaluation.windows * length) for length in evaluation.lengths}
    return Effort(train.steps, float(train.batch * model.train_length), tests)


def language_settings(model: DecoderConfig, train: TrainConfig, evaluation: EvalConfig) -> dict[str, Any]:
    """All settings that change the numbers, except for the encoding and the seed."""
    sections = {"model": asdict(model), "train": asdict(train), "evaluation": asdict(evaluation)}
    for name in ("encoding", "encoding_options", "vocabulary"):
        sections["model"].pop(name)
    if evaluation.reach == max(evaluation.lengths):  # the value of old folders, which do not have this setting
        sections["evaluation"].pop("reach")
    for name in ("seed", *FREE_TO_CHANGE):
        sections["train"].pop(name)
    return json.loads(json.dumps(sections))
