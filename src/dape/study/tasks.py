"""What the models of a study learn, and how that is tested: text, or recall of pairs."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from dape.data.store import Corpus
from dape.evaluation.config import EvalConfig
from dape.evaluation.perplexity import Readable, Subject, as_rows
from dape.evaluation.perplexity import measure as measure_perplexity
from dape.evaluation.probe.learn import RecallTask as Recall
from dape.evaluation.probe.learn import measure as measure_recall
from dape.evaluation.probe.mqar import data_hash, tokens_name
from dape.evaluation.records import Row
from dape.hf.scorer import Scorer
from dape.hf.tune import HostTextTask, Tuning
from dape.study.config import StudyConfig
from dape.tasks.base import Task as Learned

Watch = Callable[[int, int, int], None]
"""Told the length, and how much of how much there is done."""


class Task(Protocol):
    """One of the kinds of study."""

    name: str
    data_hash: str
    tokenizer: str
    vocabulary: int

    def begin(self, model: Any) -> None:
        """Change an untrained model, if the task needs that."""
        ...

    def lessons(self, tuning: Tuning, *, from_scratch: bool) -> Learned: ...

    def rows(self, model: Readable, lengths: tuple[int, ...], subject: Subject, *, watch: Watch) -> Iterator[Row]: ...


def task_of(config: StudyConfig, data: str) -> Task:
    return RecallTask(config) if config.task == "recall" else TextTask(config, Corpus.open(Path(data)))


class TextTask:
    """The next token; tested by perplexity of the same last tokens at every length."""

    def __init__(self, config: StudyConfig, corpus: Corpus) -> None:
        self._config, self._corpus = config, corpus
        self.name, self.data_hash = corpus.name, corpus.hash
        self.tokenizer, self.vocabulary = corpus.tokenizer.name, corpus.tokenizer.vocabulary

    def begin(self, model: Any) -> None:
        pass

    def lessons(self, tuning: Tuning, *, from_scratch: bool) -> Learned:
        return HostTextTask(self._corpus, tuning)

    def rows(self, model: Readable, lengths: tuple[int, ...], subject: Subject, *, watch: Watch) -> Iterator[Row]:
        config = self._config
        evaluation = EvalConfig(
            lengths=lengths, last_k=config.train_length, windows=config.windows, reach=config.lengths[-1]
        )
        for measured in measure_perplexity(model, self._corpus.validation, evaluation, watch=watch):
            yield from as_rows(measured, subject, evaluation)


class RecallTask:
    """Values that belong to keys, stated among noise (:mod:`dape.evaluation.probe.mqar`); tested by accuracy."""

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

    def rows(self, model: Readable, lengths: tuple[int, ...], subject: Subject, *, watch: Watch) -> Iterator[Row]:
        recall = replace(self._recall, lengths=lengths)
        yield from measure_recall(model, recall, subject, watch=lambda length: watch(length, 0, 1))
