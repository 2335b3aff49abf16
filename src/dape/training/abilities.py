"""Train a small model on one generated test."""

from pathlib import Path

import torch

from dape.models.decoder import DecoderLM
from dape.tasks.abilities.config import AbilityConfig
from dape.tasks.abilities.task import AbilityTask
from dape.tasks.small_models import new_model
from dape.training.recall import train_config
from dape.training.trainer import Trainer


class AbilityTrainer(Trainer):
    """One run, in its folder. Building it creates the model, or restores it from the last checkpoint."""

    model: DecoderLM
    task: AbilityTask

    def __init__(
        self, folder: Path, config: AbilityConfig, *, test: str, method: str, seed: int, device: torch.device
    ) -> None:
        task = AbilityTask(config, test, seed=seed)
        model = new_model(config.model(method, task.ability.vocabulary), seed).to(device)
        super().__init__(model, task, train_config(config, seed), folder, described=model.config)
