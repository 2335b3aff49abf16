"""The training loop: a step is a function of the weights, the data and the step's number, so a run can be killed at any
moment and continued from its last checkpoint to exactly the weights it would have had."""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dape.data.store import Corpus
from dape.data.windows import TrainingWindows, evaluation_ends, evaluation_windows
from dape.models.decoder import DecoderLM
from dape.reading import reading
from dape.training import checkpoint
from dape.training.checkpoint import CHECKPOINTS, Description
from dape.training.optim import learning_rate, make_optimizer
from dape.training.run import Metrics, RunConfig
from dape.training.trackers import Tracker

VALIDATION_WINDOWS = 64
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class NonFiniteLossError(ValueError):
    """Training has diverged; the checkpoints that exist are from before."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far training is, told after every step."""

    step: int
    """Steps taken."""
    steps: int
    loss: float
    tokens_per_second: float


class Trainer:
    """One run, in its folder. Building it creates the model, or restores it from the last checkpoint."""

    def __init__(
        self, folder: Path, config: RunConfig, corpus: Corpus, *, device: torch.device, trackers: list[Tracker]
    ) -> None:
        self.folder, self.corpus, self.device = folder, corpus, device
        self.config = replace(config, model=replace(config.model, vocabulary=vocabulary_for(corpus)))
        self.train = config.train
        self.train.check()
        self.windows = TrainingWindows(corpus.train, length=config.model.train_length, seed=self.train.seed)
        torch.manual_seed(self.train.seed)
        self.model = DecoderLM(self.config.model).to(device)
        self.optimizer = make_optimizer(self.model, self.train)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.train.precision == "fp16")
        self.step = 0
        self.threads_before: int | None = None
        """Of the process that wrote the checkpoint this run goes on from."""
        self.validation_loss: float | None = None
        self._resume()
        self.metrics = Metrics(folder, after_step=self.step)
        self.trackers = trackers
        self.loss_of = torch.compile(self._loss_of) if self.train.compile else self._loss_of

    # Saving and restoring --------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        saved = checkpoint.resume(self.folder / CHECKPOINTS, self.model, self.optimizer, self._description())
        if saved is None:
            return
        if saved.scaler:
            with reading(self.folder / CHECKPOINTS, "the state of the loss scaler is damaged"):
                self.scaler.load_state_dict(saved.scaler)
        self.step, self.threads_before = saved.step, saved.threads

    def _description(self) -> Description:
        return Description(
            step=self.step,
            model=self.config.model,
            train=self.train,
            data=data_of(self.corpus),
            scaler=self.scaler.state_dict() if self.scaler.is_enabled() else {},
            threads=torch.get_num_threads(),
        )

    def save(self) -> Path:
        folder = self.folder / CHECKPOINTS
        saved = checkpoint.save(folder, self._description(), self.model, self.optimizer, self.corpus.tokenizer)
        checkpoint.prune(folder, self.train.keep)
        return saved

    # Training --------------------------------------------------------------------------------------------------------

    def run(self, *, watch: Callable[[Progress], None], stop: Callable[[], bool]) -> bool:
        """Train to the end, or until ``stop()``; either way the last step is saved. True if the end was reached."""
        steps, clock = self.train.steps, _Clock()
        tokens = self.train.batch * self.config.model.train_length
        while self.step < steps and not stop():
            line = self._take_step()
            speed = clock.tick(tokens)
            last = self.step == steps
            if self._due(self.train.log_every) or last or self.step == 1:
                self._log({**line, "tokens": self.step * tokens, "tokens_per_second": round(speed, 1)})
            if self._due(self.train.validate_every) or last:
                self.validation_loss = self.validate()
                if self.validation_loss is not None:
                    self._log({"step": self.step, "validation_loss": self.validation_loss})
                clock.pause()
            if self._due(self.train.save_every) or last:
                self.save()
                clock.pause()
            watch(Progress(step=self.step, steps=steps, loss=line["loss"], tokens_per_second=speed))
        if self.step < steps:
            self.save()
        return self.step == steps

    def _due(self, every: int) -> bool:
        return every > 0 and self.step % every == 0

    def _log(self, line: dict[str, Any]) -> None:
        self.metrics.add(line)
        for tracker in self.trackers:
            tracker.add(line)

    def _take_step(self) -> dict[str, Any]:
        """One optimizer step; its loss is checked before the weights are touched."""
        lr = learning_rate(self.step, self.train)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        tokens = torch.from_numpy(self.windows.batch(self.step, self.train.batch)).to(self.device)
        generator = torch.Generator().manual_seed(step_seed(self.train.seed, self.step))
        loss = 0.0
        for part in tokens.chunk(self.train.accumulate):
            part_loss = self.loss_of(part, self._encodings(generator)) / self.train.accumulate
            self.scaler.scale(part_loss).backward()
            loss += part_loss.item()
        self._check_finite(loss, tokens)
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.train.clip or math.inf).item()
        if not self.scaler.is_enabled() and not math.isfinite(norm):
            self._stop_non_finite(f"the gradient's norm is {norm}", tokens)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.model.project_()
        self.step += 1
        return {"step": self.step, "loss": loss, "lr": lr, "gradient_norm": norm}

    def _encodings(self, generator: torch.Generator) -> list[Any]:
        return self.model.drawn_encodings(self.config.model.train_length, generator)

    def _loss_of(self, tokens: Tensor, encodings: list[Any]) -> Tensor:
        with self._autocast():
            logits = self.model(tokens[:, :-1], encodings=encodings)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        dtype = DTYPES.get(self.train.precision)
        return contextlib.nullcontext() if dtype is None else torch.autocast(self.device.type, dtype=dtype)

    def validate(self) -> float | None:
        """Mean nats per token at the training length, on windows that are the same for every run on this data. None if
        there is too little held-out text."""
        length = self.config.model.train_length
        stream = self.corpus.validation
        if len(stream) <= length:
            return None
        ends = evaluation_ends(stream, reach=length, k=length, windows=VALIDATION_WINDOWS, same_document=False)
        tokens = torch.from_numpy(evaluation_windows(stream, ends, length)).to(self.device)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            losses = [self._loss_of(part, self._encodings(generator)).item() * len(part) for part in tokens.split(16)]
        return sum(losses) / len(tokens)

    def _check_finite(self, loss: float, tokens: Tensor) -> None:
        if not math.isfinite(loss):
            self._stop_non_finite(f"the loss is {loss}", tokens)

    def _stop_non_finite(self, what: str, tokens: Tensor) -> None:
        batch = f"batch {self.step} of seed {self.train.seed}"
        beginning = self.corpus.tokenizer.decode(tokens[0, :40].tolist())
        found = checkpoint.checkpoints(self.folder / CHECKPOINTS)
        kept = f"The last checkpoint is {found[-1].name}." if found else "No checkpoint had been written yet."
        raise NonFiniteLossError(
            f"step {self.step + 1}: {what} ({batch}, which begins {beginning!r}). {kept} Try {self._advice()}."
        )

    def _advice(self) -> str:
        """What could help, without what is set already."""
        train = self.train
        advice = [f"a lower --lr (now {train.lr:g})", f"a longer --warmup-share (now {train.warmup_share:g})"]
        if not 0 < train.clip <= 1:
            advice.append(f"--clip 1 (now {train.clip:g})")
        if train.precision != "fp32":
            advice.append(f"--precision {'bf16' if train.precision == 'fp16' else 'fp32'}")
        return ", ".join(advice[:-1]) + " or " + advice[-1]


class _Clock:
    """Tokens per second over the latest steps; pauses, as for saving, do not count."""

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


def step_seed(seed: int, step: int) -> int:
    """A seed of its own for every step of every run."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def vocabulary_for(corpus: Corpus) -> int:
    """As many ids as the tokenizer has; a large vocabulary is rounded up to a multiple of 128, as the authors do."""
    ids = corpus.tokenizer.vocabulary
    return ids if ids < 1024 else -(-ids // 128) * 128


def data_of(corpus: Corpus) -> dict[str, Any]:
    tokenizer = corpus.tokenizer
    return {
        "name": corpus.name,
        "hash": corpus.hash,
        "tokenizer": tokenizer.name,
        "tokenizer_fingerprint": tokenizer.fingerprint,
    }
