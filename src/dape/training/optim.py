"""Optimizer, parameter groups and learning rate, as the authors' framework has them."""

import math
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from dape.training.config import TrainConfig


def learning_rate(step: int, config: TrainConfig) -> float:
    """The rate of optimizer step ``step``, counted from 0: a linear warm-up, then half a cosine."""
    warmup = max(1, round(config.warmup_share * config.steps))
    if step < warmup:
        return config.lr * (step + 1) / warmup
    progress = (step + 1 - warmup) / max(1, config.steps - warmup)
    lowest = config.final_lr_share * config.lr
    return lowest + (config.lr - lowest) * (1 + math.cos(math.pi * min(1.0, progress))) / 2


def decayed(model: nn.Module, config: TrainConfig) -> dict[str, bool]:
    """By parameter name, whether weight decay applies: not to norms and not to parameters called ``bias``."""
    norms = {name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)}

    def decays(name: str, parameter: nn.Parameter) -> bool:
        owner, _, own_name = name.rpartition(".")
        if owner in norms or own_name == "bias":
            return False
        is_position = name.startswith("encodings.") and parameter.dim() < 2
        return config.decay_positions or not is_position

    return {name: decays(name, parameter) for name, parameter in model.named_parameters()}


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    decays = decayed(model, config)
    groups: list[dict[str, Any]] = [
        {
            "params": [p for name, p in model.named_parameters() if (decays[name], isinstance(p, DTensor)) == kind],
            "weight_decay": config.weight_decay if kind[0] else 0.0,
        }
        # A fused optimizer handles one group in one call, which takes either sharded or whole tensors.
        for kind in ((True, False), (False, False), (True, True), (False, True))
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )
