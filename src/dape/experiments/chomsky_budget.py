"""The steps, test lengths and examples that fit into a number of minutes, estimated from a few timed steps."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from dape.evaluation.chomsky import GROUP
from dape.experiments.chomsky import SIDE_BY_SIDE, too_little
from dape.experiments.executor import START_SECONDS
from dape.models.encoder import Encoder
from dape.tasks.base import Batch, Loss
from dape.tasks.chomsky.base import Task
from dape.tasks.chomsky.catalogue import load
from dape.tasks.chomsky.config import CheConfig, Subject
from dape.tasks.chomsky.learn import mean_loss, seeded, training_batch
from dape.tasks.chomsky.model import encoder_for, total_length
from dape.training.chomsky import train_config
from dape.training.optim import make_optimizer
from dape.training.update import Updater

TEST_SHARE = 0.3
"""Fraction of the time that tests may take."""
FEWEST_STEPS = 20
FAMILIAR_STRIDE = 3
"""Of the lengths that are trained on, every third is tested."""
SAMPLES = (256, 128, 64)
"""Numbers of test examples per length: the first that leaves time for ENOUGH_LENGTHS is taken."""
ENOUGH_LENGTHS = 24
LENGTH_COUNTS = (231, 116, 93, 47, 24, 12, 6)
"""Numbers of test lengths to try, if there is no time for all."""


@dataclass(frozen=True)
class Speed:
    """Seconds for ``t`` tokens, ``fixed + linear t + square t^2``, of a training step and of one test example."""

    train: tuple[float, float, float]
    test: tuple[float, float, float]

    def step(self, config: CheConfig, task: Task) -> float:
        """Seconds of an average training step."""
        lengths = range(1, config.train_length + 1)
        return float(np.mean([self._at(self.train, total_length(config, task, n)) for n in lengths]))

    def testing(self, config: CheConfig, task: Task, lengths: Sequence[int]) -> float:
        """Seconds of one test example of each length."""
        return sum(self._at(self.test, total_length(config, task, n)) for n in lengths)

    @staticmethod
    def _at(cost: tuple[float, float, float], tokens: int) -> float:
        return cost[0] + cost[1] * tokens + cost[2] * tokens**2


def time_method(config: CheConfig, method: str) -> Speed:
    """Time training steps and tests at three lengths each; the faster of two attempts counts."""
    subject = Subject(task="bucket_sort", method=method, seed=0, lr=1e-3)
    model = encoder_for(config, load(subject.task), method)
    training = train_config(config, subject)
    updater = Updater(model, training, make_optimizer(model, training))

    def train(tokens: int) -> float:
        return min(_train_seconds(model, updater, config, tokens) for _ in range(2))

    def test(tokens: int, batch: int) -> float:
        return min(_test_seconds(model, tokens, batch) for _ in range(2)) / batch

    training = _fit(train(4), (24, train(24)), (80, train(80)))
    return Speed(training, _fit(test(4, GROUP), (64, test(64, 32)), (384, test(384, 8))))


def _fit(fixed: float, short: tuple[int, float], long: tuple[int, float]) -> tuple[float, float, float]:
    """Solve for the cost per call, per token and per squared token. Negative costs become 0."""
    (a, cost_a), (b, cost_b) = ((tokens, max(0.0, seconds - fixed) / tokens) for tokens, seconds in (short, long))
    square = max(0.0, (cost_b - cost_a) / (b - a))
    return fixed, max(0.0, cost_b - square * b), square


def _train_seconds(model: Encoder, updater: Updater, config: CheConfig, tokens: int) -> float:
    """Seconds of a whole step with drawing of examples. The model reads zeros instead of them, to set its length."""
    ids = torch.zeros(config.batch, tokens, dtype=torch.long)
    begin = time.perf_counter()
    training_batch(config, load("bucket_sort"), seed=0, step=0)
    outputs = max(1, tokens // 2)

    def loss(part: int) -> Loss:
        logits = model(ids, outputs, encodings=model.drawn_encodings(tokens, seeded(0)), noise=seeded(0))
        return Loss(mean_loss(logits, ids[:, :outputs]), 1)

    updater.take(Batch(loss=loss, count=1), step=0)
    return time.perf_counter() - begin


@torch.inference_mode()
def _test_seconds(model: Encoder, tokens: int, batch: int) -> float:
    ids = torch.zeros(batch, tokens, dtype=torch.long)
    begin = time.perf_counter()
    model(ids, max(1, tokens // 2))
    return time.perf_counter() - begin


def planned(
    budget: float,
    config: CheConfig,
    speeds: dict[str, Speed],
    *,
    tasks: Sequence[str],
    repeats: int,
    jobs: int,
    spent: float = 0.0,
) -> CheConfig:
    """The config with as many steps and tests as fit into ``budget`` minutes, of which ``spent`` are over.

    There are ``repeats`` runs of every task and method, ``jobs`` at a time. Raises UsageError if the budget is too
    small.
    """
    pairs = [(speeds[method], load(task, config.compat)) for task in tasks for method in speeds]
    runs = repeats * len(pairs)
    jobs = min(jobs, runs)
    seconds = 60 * (budget - spent) * jobs * (SIDE_BY_SIDE if jobs > 1 else 0.9) - START_SECONDS * runs
    config = _with_tests(config, pairs, repeats, TEST_SHARE * seconds)
    testing = repeats * config.samples * sum(speed.testing(config, task, config.lengths) for speed, task in pairs)
    per_step = repeats * sum(speed.step(config, task) for speed, task in pairs)
    steps = int((seconds - testing) / per_step)
    if steps < FEWEST_STEPS:
        needed = spent + (testing + FEWEST_STEPS * per_step + START_SECONDS * runs) / (60 * jobs * SIDE_BY_SIDE)
        raise too_little(budget, runs, needed, f"to take {FEWEST_STEPS} steps each")
    return replace(config, steps=min(_two_digits(steps), config.steps))


def _with_tests(config: CheConfig, pairs: Sequence[tuple[Speed, Task]], repeats: int, seconds: float) -> CheConfig:
    """The config with as many evenly spaced test lengths as ``seconds`` allow."""
    scored = config.scored_lengths
    familiar = config.familiar_lengths[FAMILIAR_STRIDE - 1 :: FAMILIAR_STRIDE] or config.familiar_lengths
    trial = config
    for samples in SAMPLES:
        for count in (len(scored), *LENGTH_COUNTS):
            trial = replace(config, samples=samples, lengths=(*familiar, *evenly(scored, count)))
            cost = repeats * samples * sum(speed.testing(trial, task, trial.lengths) for speed, task in pairs)
            if cost <= seconds:
                break
        if len(trial.scored_lengths) >= ENOUGH_LENGTHS:
            break
    return trial


def evenly(lengths: Sequence[int], count: int) -> tuple[int, ...]:
    """``count`` evenly spaced lengths, the first and the last included."""
    indices = np.linspace(0, len(lengths) - 1, min(count, len(lengths))).round().astype(int)
    return tuple(lengths[index] for index in dict.fromkeys(indices.tolist()))


def _two_digits(steps: int) -> int:
    """Rounded down to two significant digits."""
    unit = 10 ** max(0, len(str(steps)) - 2)
    return steps // unit * unit
