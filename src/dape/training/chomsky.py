"""Train one model on one task of the Chomsky-hierarchy benchmark."""

from pathlib import Path

import torch

from dape.models.encoder import Encoder
from dape.tasks.chomsky.config import CheConfig, Subject
from dape.tasks.chomsky.learn import ChomskyTask
from dape.tasks.chomsky.model import encoder_for
from dape.training.config import TrainConfig
from dape.training.trainer import Trainer

SAVE_SECONDS = 120.0


def train_config(config: CheConfig, subject: Subject) -> TrainConfig:
    """Plain Adam at a constant rate."""
    return TrainConfig(
        steps=config.steps,
        batch=config.batch,
        lr=subject.lr,
        final_lr_share=1.0,
        warmup_share=0.0,
        beta2=0.999,
        weight_decay=0.0,
        seed=subject.seed,
        log_every=50,
        save_every=0,
        save_seconds=SAVE_SECONDS,
        keep=1,
    )


class ChomskyTrainer(Trainer):
    """One run, in its folder. Building it creates the model, or restores it from the last checkpoint."""

    model: Encoder
    task: ChomskyTask

    def __init__(self, folder: Path, config: CheConfig, subject: Subject, device: torch.device) -> None:
        task = ChomskyTask(config, subject)
        torch.manual_seed(subject.seed)
        model = encoder_for(config, task.examples, subject.method).to(device)
        super().__init__(model, task, train_config(config, subject), folder, described=model.shape)
