"""One optimizer step: the only code that changes weights. The training loop repeats it, benchmarks time it."""

import contextlib
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dape.positional.base import project_
from dape.tasks.base import Batch, Loss
from dape.training.config import TrainConfig
from dape.training.parallel import HALF, Spread
from dape.training.side_by_side import SideBySide


class NotFiniteError(ValueError):
    """The loss or the gradient is infinite or NaN; the weights are as before."""


@dataclass(frozen=True)
class Updated:
    loss: float
    """Of the whole batch, before the step."""
    gradient_norm: float
    """Before clipping."""
    accuracy: float | None
    """Share of right answers, if the task counts them."""


class Updater:
    """Takes optimizer steps on the parameters of ``model`` that require a gradient."""

    def __init__(
        self, model: nn.Module, config: TrainConfig, optimizer: torch.optim.Optimizer, spread: Spread | None = None
    ) -> None:
        self.model, self.config, self.optimizer = model, config, optimizer
        self.spread = Spread(model) if spread is None else spread
        self.learned = [p for p in model.parameters() if p.requires_grad]
        self.device = self.learned[0].device
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.precision == "fp16")
        self._side_by_side = SideBySide()

    def take(self, batch: Batch, *, step: int) -> Updated:
        """Take one step: gradients of all parts, checks, clipping, update, and constrained parameters back in range.

        Raises:
            NotFiniteError: if the loss or the gradient is infinite or NaN.
        """
        with own_randomness(f"{self.config.seed} {step}", self.device):
            losses = self._backward(batch)
        loss, right, answers = self.spread.group.sums(
            sum(mean for mean, _ in losses),
            sum(part.right for _, part in losses),
            sum(part.answers for _, part in losses),
        )
        if not math.isfinite(loss):
            self._refuse(f"the loss is {loss}")
        self.scaler.unscale_(self.optimizer)
        norm = self.spread.clip(self.learned, self.config.clip or math.inf)
        if not self.scaler.is_enabled() and not math.isfinite(norm):
            self._refuse(f"the gradient's norm is {norm}")
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        project_(self.model)
        return Updated(loss, norm, right / answers if answers else None)

    def _refuse(self, what: str) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        raise NotFiniteError(what)

    def _backward(self, batch: Batch) -> list[tuple[float, Loss]]:
        """Put the gradient of the whole batch into ``grad``. Return every part's share of the loss, and its counts."""
        if batch.side_by_side and batch.parts > 1:
            found = self._side_by_side(lambda part: self._gradients(batch, part), batch.parts)
            for parameter, gradients in zip(self.learned, zip(*(g for *_, g in found), strict=True), strict=True):
                parameter.grad = _sum(gradients)
            return [(mean, part) for mean, part, _ in found]
        losses = []
        for index in range(batch.parts):
            with self.spread.exchanging(last=index == batch.parts - 1):
                mean, part = self._loss(batch, index)
                self.scaler.scale(mean).backward()
            losses.append((mean.item(), part))
        self.spread.sum_whole_gradients()
        return losses

    def _gradients(self, batch: Batch, index: int) -> tuple[float, Loss, tuple[Tensor | None, ...]]:
        mean, part = self._loss(batch, index)
        gradients = torch.autograd.grad(self.scaler.scale(mean), self.learned, allow_unused=True)
        return mean.item(), part, gradients

    def _loss(self, batch: Batch, index: int) -> tuple[Tensor, Loss]:
        with self.autocast():
            part = batch.loss(index)
        return part.mean / (batch.count / part.count), part

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Half precision for the operations that torch considers safe; weights and optimizer stay in float32."""
        dtype = HALF.get(self.config.precision)
        return contextlib.nullcontext() if dtype is None else torch.autocast(self.device.type, dtype=dtype)


def _sum(gradients: Sequence[Tensor | None]) -> Tensor | None:
    """The sum in order of parts, in the first one's memory. None if the loss did not depend on the parameter."""
    first, *others = gradients
    for other in others:
        if first is not None and other is not None:
            first += other
    return first


@contextlib.contextmanager
def own_randomness(words: str, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators with ``words`` inside this context, so that what a model draws from them (dropout
    of other libraries' models) does not depend on earlier draws. Gradient checkpointing may restore their state."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(zlib.crc32(words.encode()))
        yield
