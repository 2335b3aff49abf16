"""What the models of a study learn, and how that is tested: text, or recall of pairs."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from dape.data.store import Corpus
from dape.evaluation.config import EvalConfig
from dape.evaluation.perplexity import Subject, as_rows, measure
from dape.evaluation.recall import measure_at
from dape.experiments.adapters.config import StudyConfig
from dape.experiments.job import Watch
from dape.hf.scorer import Scorer
from dape.hf.tune import HostTextTask, Tuning
from dape.models.readable import Readable
from dape.results.records import Row
from dape.tasks.base import Task as Learned
from dape.tasks.recall.sequences import data_hash, tokens_name
from dape.tasks.recall.task import RecallTask as Recall


class Task(Protocol):
    """One of the kinds of study."""

    name: str
    data_hash: str
    tokenizer: str
    vocabulary: int
    metric: str
    """Of the first row of a test."""

    def begin(self, model: Any) -> None:
        """Change an untrained model, if the task needs that."""
        ...

    def lessons(self, tuning: Tuning, *, from_scratch: bool) -> Learned: ...

    def rows(self, model: Readable, length: int, subject: Subject, *, watch: Watch) -> list[Row]: ...


def task_of(config: StudyConfig, data: str) -> Task:
    return RecallTask(config) if config.task == "recall" else TextTask(config, Corpus.open(Path(data)))


class TextTask:
    """The next token; tested by perplexity of the same last tokens at every length."""

    metric = "perplexity"

    def __init__(self, config: StudyConfig, corpus: Corpus) -> None:
        self._config, self._corpus = config, corpus
        self.name, self.data_hash = corpus.name, corpus.hash
        self.tokenizer, self.vocabulary = corpus.tokenizer.name, corpus.tokenizer.vocabulary

    def begin(self, model: Any) -> None:
        pass

    def lessons(self, tuning: Tuning, *, from_scratch: bool) -> Learned:
        return HostTextTask(self._corpus, tuning)

    def rows(self, model: Readable, length: int, subject: Subject, *, watch: Watch) -> list[Row]:
        config = self._config
        evaluation = EvalConfig(
            lengths=(length,), last_k=config.train_length, windows=config.windows, reach=config.lengths[-1]
        )
        stream = self._corpus.validation
        (measured,) = measure(model, stream, evaluation, watch=lambda _, done, total: watch(done, total))
        return as_rows(measured, subject, evaluation)


class RecallTask:
    """Values that belong to keys, stated among noise (:mod:`dape.tasks.recall.sequences`); tested by accuracy."""

    metric = "accuracy"

    def __init__(self, config: StudyConfig) -> None:
        self._recall = config.recall
        self.name = self.tokenizer = tokens_name(self._recall)
        self.data_hash, self.vocabulary = data_hash(self._recall), self._recall.vocabulary

    def begin(self, model: Any) -> None:
        """Small embeddings keep rotary models from learning the task (docs/lab-notes.md)."""
        nn.init.normal_(model.get_input_embeddings().weight)

    def lessons(self, tuning: Tuning, *, from_scratch: bool) -> Learned:
        # Sequences grow while a model learns the task; one that knows it begins where that ends.
        first = 0 if from_scratch else tuning.steps
        recall = replace(self._recall, train_length=tuning.length, batch=tuning.batch, steps=tuning.steps)
        return Recall(recall, seed=tuning.seed, first=first, reads=Scorer)

    def rows(self, model: Readable, length: int, subject: Subject, *, watch: Watch) -> list[Row]:
        return measure_at(model, self._recall, subject, length)
