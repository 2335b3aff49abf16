"""The training loop for every task.

A step is a function of the weights, the task and the step's number. A run can therefore be killed at any moment, and
continued from its last checkpoint to exactly the weights it would have had.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dape.data.tokenizer import Tokenizer
from dape.reading import reading
from dape.tasks.base import Task
from dape.training import checkpoint
from dape.training.config import TrainConfig
from dape.training.description import CHECKPOINTS, Description
from dape.training.optim import learning_rate, make_optimizer
from dape.training.parallel import ALONE, Group, spread
from dape.training.run import Metrics
from dape.training.saving import Saving
from dape.training.trackers import Tracker
from dape.training.update import NotFiniteError, Updated, Updater


class NonFiniteLossError(ValueError):
    """Training has diverged. The existing checkpoints are from before."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far training is, reported after every step."""

    step: int
    """Steps taken."""
    steps: int
    loss: float
    tokens_per_second: float


class Trainer:
    """One run, in its folder. It trains all parameters that require a gradient. Building a trainer restores the last
    checkpoint, if there is one.

    Args:
        model: the model, with the weights that a new run begins with.
        task: what the model learns.
        config: steps, learning rate and the like.
        folder: where metrics.jsonl and checkpoints are written.
        described: the configuration of the model, for its checkpoints.
        optimizer: by default AdamW with the authors' settings.
        tokenizer: saved with every checkpoint, if there is one.
        trackers: get every line of metrics too.
        group: the processes that share the work; all of them build the same trainer.

    Raises:
        UsageError: on invalid settings, or a checkpoint of other settings or data.
        ValueError: if every parameter is frozen, or every checkpoint is damaged.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        config: TrainConfig,
        folder: Path,
        *,
        described: Any,
        optimizer: torch.optim.Optimizer | None = None,
        tokenizer: Tokenizer | None = None,
        trackers: Sequence[Tracker] = (),
        group: Group = ALONE,
    ) -> None:
        config.check()
        group.check(config)
        if not any(p.requires_grad for p in model.parameters()):
            raise ValueError("nothing to train: every parameter of the model is frozen")
        self.model, self.task, self.train, self.folder = model, task, config, folder
        self.group, self.spread = group, spread(model, group, config)
        self.optimizer = make_optimizer(model, config) if optimizer is None else optimizer
        self.updater = Updater(model, config, self.optimizer, self.spread)
        self.step = 0
        self.threads_before: int | None = None
        """Threads of the process that wrote the checkpoint this run goes on from."""
        self.validation_loss: float | None = None
        self.trackers = list(trackers)
        self._described, self._tokenizer = described, tokenizer
        self._saving: Saving | None = None
        self._resume()
        folder.mkdir(parents=True, exist_ok=True)
        self.metrics = Metrics(folder, after_step=self.step) if group.is_first else None

    @property
    def device(self) -> torch.device:
        return self.updater.device

    # Saving and restoring --------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        where, now = self.folder / CHECKPOINTS, self._description()
        saved = checkpoint.resume(where, self.model, self.optimizer, now, self.group)
        if saved is None:
            return
        if saved.scaler:
            with reading(self.folder / CHECKPOINTS, "the state of the loss scaler is damaged"):
                self.updater.scaler.load_state_dict(saved.scaler)
        self.step, self.threads_before = saved.step, saved.threads

    def _description(self) -> Description:
        scaler = self.updater.scaler
        return Description(
            step=self.step,
            model=self._described,
            train=self.train,
            data=dict(self.task.identity),
            scaler=scaler.state_dict() if scaler.is_enabled() else {},
            threads=torch.get_num_threads(),
        )

    def save(self) -> Path:
        """Write a checkpoint. A sharded model is written while training goes on, see :meth:`wait_for_checkpoint`."""
        folder, keep = self.folder / CHECKPOINTS, self.train.keep
        parts = (folder, self._description(), self.model, self.optimizer, self._tokenizer)
        if self.group.mode == "fsdp":
            self.wait_for_checkpoint()
            self._saving = checkpoint.begin_sharded(*parts, group=self.group, keep=keep)
        elif self.group.is_first:
            checkpoint.save(*parts)
            checkpoint.prune(folder, keep)
        return checkpoint.checkpoint_path(folder, self.step)

    def wait_for_checkpoint(self) -> None:
        """Wait until the last checkpoint is on the disk, or raise the error that prevented it."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.wait()

    # Training --------------------------------------------------------------------------------------------------------

    def run(self, *, watch: Callable[[Progress], None] = lambda progress: None, stop: Callable[[], bool]) -> bool:
        """Train to the end, or until ``stop()`` is true. Either way the last step is saved.

        Args:
            watch: called after every step.
            stop: asked before every step.

        Returns:
            Whether the end was reached.

        Raises:
            NonFiniteLossError: if the loss or the gradient is infinite or NaN.
        """
        clock, saved = _Clock(), time.monotonic()
        self.model.train()
        while self.step < self.train.steps and not self.group.any(stop()):
            done, tokens = self.take_step()
            speed = clock.tick(tokens)
            self._log_step(done, speed)
            if self._due(self.train.validate_every) or self._at_end:
                self._validate()
                clock.pause()
            if self._due(self.train.save_every) or self._at_end or self._seconds_are_over(saved):
                self.save()
                saved = time.monotonic()
                clock.pause()
            watch(Progress(step=self.step, steps=self.train.steps, loss=done.loss, tokens_per_second=speed))
        self.model.eval()
        if not self._at_end:
            self.save()
        self.wait_for_checkpoint()
        return self._at_end

    @property
    def _at_end(self) -> bool:
        return self.step == self.train.steps

    def _due(self, every: int) -> bool:
        return every > 0 and self.step % every == 0

    def _seconds_are_over(self, saved: float) -> bool:
        """Whether the last checkpoint, ``saved`` at that time, is older than ``save_seconds``; all processes agree."""
        every = self.train.save_seconds
        return every > 0 and self.group.any(time.monotonic() - saved > every)

    def take_step(self) -> tuple[Updated, int]:
        """Take one optimizer step; return its result and its number of targets.

        Raises:
            NonFiniteLossError: if the loss or the gradient is infinite or NaN. The weights are then as before.
        """
        self._set_rate(learning_rate(self.step, self.train))
        batch = self.task.batch(self.spread.computing, self.step)
        try:
            done = self.updater.take(batch, step=self.step)
        except NotFiniteError as error:
            raise NonFiniteLossError(f"step {self.step + 1}: {error}{self._hints(batch.words())}") from error
        self.step += 1
        return done, batch.count

    def _set_rate(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def validate(self) -> float | None:
        """The loss on held-out examples; None if the task has none."""
        with self.updater.autocast():
            return self.task.validate(self.spread.computing)

    def _validate(self) -> None:
        self.validation_loss = self.validate()
        if self.validation_loss is not None:
            self._log({"step": self.step, "validation_loss": self.validation_loss})

    # Metrics and messages --------------------------------------------------------------------------------------------

    def _log_step(self, done: Updated, speed: float) -> None:
        if not (self._due(self.train.log_every) or self._at_end or self.step == 1):
            return
        line: dict[str, Any] = {"step": self.step, "loss": done.loss, "lr": self.optimizer.param_groups[0]["lr"]}
        line["gradient_norm"] = done.gradient_norm
        if done.accuracy is not None:
            line["accuracy"] = done.accuracy
        if self.task.tokens is not None:
            line |= {"tokens": self.step * self.task.tokens, "tokens_per_second": round(speed, 1)}
        self._log(line)

    def _log(self, line: dict[str, Any]) -> None:
        if self.metrics is None:
            return
        self.metrics.add(line)
        for tracker in self.trackers:
            tracker.add(line)

    def _hints(self, words: str) -> str:
        """The end of an error message: which batch, which checkpoint remains, what to try."""
        found = checkpoint.checkpoints(self.folder / CHECKPOINTS)
        kept = f"The last checkpoint is {found[-1].name}." if found else "No checkpoint had been written yet."
        return f"{f' ({words})' if words else ''}. {kept} Try {self._advice()}."

    def _advice(self) -> str:
        """Settings against divergence that this run does not have yet."""
        train = self.train
        advice = [f"a lower `lr` (now {train.lr:g})", f"a longer `warmup_share` (now {train.warmup_share:g})"]
        if not 0 < train.clip <= 1:
            advice.append(f"`clip` 1 (now {train.clip:g})")
        if train.precision != "fp32":
            advice.append(f"`precision` {'bf16' if train.precision == 'fp16' else 'fp32'}")
        return ", ".join(advice[:-1]) + " or " + advice[-1]


class _Clock:
    """Tokens per second: a moving average over steps, without pauses such as saving."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self._speed: float | None = None

    def tick(self, tokens: int) -> float:
        now = time.perf_counter()
        speed = tokens / max(now - self._last, 1e-9)
        self._last = now
        self._speed = speed if self._speed is None else 0.9 * self._speed + 0.1 * speed
        return self._speed

    def pause(self) -> None:
        self._last = time.perf_counter()
