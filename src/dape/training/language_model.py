"""A language model and its :class:`~dape.training.trainer.Trainer`, from the settings of a run."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from dape.data.store import Corpus
from dape.models.decoder import DecoderLM
from dape.tasks.text import TextTask
from dape.training.parallel import ALONE, Group
from dape.training.run import RunConfig
from dape.training.trackers import Tracker
from dape.training.trainer import Trainer


class LanguageModelTrainer(Trainer):
    """One run of ``dape train``. Building it creates the model, or restores it from the last checkpoint."""

    model: DecoderLM
    task: TextTask

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        corpus: Corpus,
        *,
        device: torch.device,
        trackers: Sequence[Tracker] = (),
        group: Group = ALONE,
    ) -> None:
        self.corpus = corpus
        self.config = replace(config, model=replace(config.model, vocabulary=vocabulary_for(corpus)))
        model, train = self.config.model, config.train
        train.check()
        task = TextTask(
            corpus,
            length=model.train_length,
            batch=train.batch,
            seed=train.seed,
            parts=train.accumulate,
            compile=train.compile,
            shares=group,
        )
        torch.manual_seed(train.seed)
        new = DecoderLM(model).to(device)
        super().__init__(
            new, task, train, folder, described=model, tokenizer=corpus.tokenizer, trackers=trackers, group=group
        )


def vocabulary_for(corpus: Corpus) -> int:
    """The number of ids of the tokenizer. From 1024 it is rounded up to a multiple of 128, as the authors do."""
    ids = corpus.tokenizer.vocabulary
    return ids if ids < 1024 else -(-ids // 128) * 128
