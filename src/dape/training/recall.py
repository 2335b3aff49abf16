"""Train a small model on associative recall."""

from pathlib import Path

import torch

from dape.models.decoder import DecoderLM
from dape.tasks.recall.config import RecallConfig
from dape.tasks.recall.task import RecallTask
from dape.tasks.small_models import SmallModels, new_model
from dape.training.config import TrainConfig
from dape.training.trainer import Trainer


def train_config(config: SmallModels, seed: int) -> TrainConfig:
    """How small models are trained on generated sequences."""
    return TrainConfig(
        steps=config.steps, batch=config.batch, lr=config.lr, warmup_share=0.05, seed=seed, save_every=200, keep=1
    )


class RecallTrainer(Trainer):
    """One run, in its folder. Building it creates the model, or restores it from the last checkpoint."""

    model: DecoderLM
    task: RecallTask

    def __init__(self, folder: Path, config: RecallConfig, *, method: str, seed: int, device: torch.device) -> None:
        self.config = config
        model = new_model(config.model(method, config.vocabulary), seed).to(device)
        task = RecallTask(config, seed=seed)
        super().__init__(model, task, train_config(config, seed), folder, described=model.config)
