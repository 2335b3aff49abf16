"""The encoder for a task of the benchmark: vocabulary, lengths and options of its encoding."""

import numpy as np
from jaxtyping import Int

from dape.models.config import DecoderConfig
from dape.models.encoder import Encoder
from dape.positional.names import parse
from dape.tasks.chomsky.base import Task
from dape.tasks.chomsky.config import CheConfig


def shape_for(config: CheConfig, task: Task, method: str) -> DecoderConfig:
    return DecoderConfig(
        layers=config.layers,
        width=config.width,
        heads=config.heads,
        vocabulary=len(task.inputs) + (2 if config.computation else 1),
        encoding=method,
        encoding_options=options_for(config, method),
        train_length=total_length(config, task, config.train_length),
    )


def encoder_for(config: CheConfig, task: Task, method: str) -> Encoder:
    return Encoder(shape_for(config, task, method), outputs=len(task.outputs), dropout=config.dropout)


def options_for(config: CheConfig, method: str) -> dict[str, int | bool]:
    """The encoding's options that the benchmark sets: the pool of positions and the width of f."""
    name = parse(method)
    options: dict[str, int | bool] = {"pool": config.pool} if name.randomized else {}
    if name.wrapper:
        options["hidden"] = config.hidden
    if name.inner == "learned":
        options["max_positions"] = config.pool
    if name.inner == "transformer-xl" and config.compat == "deepmind":
        options["dm_compat"] = True
    return options


def total_length(config: CheConfig, task: Task, length: int) -> int:
    """The number of tokens that the model reads."""
    return task.input_length(length) * (1 + config.computation) + task.output_length(length)


def model_input(
    inputs: Int[np.ndarray, "b n"], outputs: int, task: Task, computation: int = 0
) -> Int[np.ndarray, "b t"]:
    """The inputs, then the empty tokens for computation, then those at which the model gives its outputs."""
    batch, count = inputs.shape
    empty = len(task.inputs)
    compute = np.full((batch, computation * count), empty)
    answer = np.full((batch, outputs), empty + (1 if computation else 0))
    return np.concatenate([inputs, compute, answer], axis=1)
