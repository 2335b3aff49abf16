"""What ``dape bench train`` runs: models with their optimizer, and one training step of each. Imports torch."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from dape.bench.plain_gpt import PlainGPT
from dape.bench.train import PLAIN_GPT
from dape.models.config import DecoderConfig
from dape.models.decoder import DecoderLM
from dape.tasks.base import Batch, Loss
from dape.training.config import Precision, TrainConfig
from dape.training.update import Updater

CLIP_NORM = 1.0
PRECISIONS: dict[str, Precision] = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""From torch's names to those of TrainConfig."""
LEARNING_RATE = 1e-4


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One training problem, without its encoding and length."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    batch: int
    precision: str
    compile: bool
    device: str
    seed: int


class Trainee:
    """A model in training, always on the same batch, so that loading data is not timed."""

    def __init__(
        self, model: nn.Module, workload: Workload, length: int, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        self.model = model.to(workload.device).train()
        self.call: Callable[..., Any] = torch.compile(self.model) if workload.compile else self.model
        self.parameters = list(self.model.parameters())
        self.optimizer = adamw(self.parameters) if optimizer is None else optimizer
        config = TrainConfig(clip=CLIP_NORM, precision=PRECISIONS[workload.precision], seed=workload.seed)
        self.updater = Updater(self.model, config, self.optimizer)
        self.inputs, self.targets = make_batch(workload, length)
        self.workload = workload

    @property
    def size(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters)

    def loss(self) -> Float[Tensor, ""]:
        with self.updater.autocast():
            logits = self.call(self.inputs)
            return F.cross_entropy(logits.flatten(0, 1).float(), self.targets.flatten())

    def forward(self) -> None:
        with torch.no_grad():
            self.loss()
        self._wait()

    def forward_backward(self) -> None:
        self.loss().backward()
        self.optimizer.zero_grad(set_to_none=True)
        self._wait()

    def step(self) -> None:
        targets = self.targets.numel()
        self.updater.take(Batch(loss=lambda part: Loss(self.loss(), targets), count=targets), step=0)
        self._wait()

    def _wait(self) -> None:
        if torch.device(self.workload.device).type == "cuda":
            torch.cuda.synchronize(self.workload.device)


def adamw(parameters: list[nn.Parameter]) -> torch.optim.AdamW:
    try:
        return torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True)
    except RuntimeError:  # not every device and version of torch has the fused AdamW
        return torch.optim.AdamW(parameters, lr=LEARNING_RATE)


def make_batch(workload: Workload, length: int) -> tuple[Int[Tensor, "b t"], Int[Tensor, "b t"]]:
    """Random tokens, and their next tokens as targets."""
    generator = torch.Generator().manual_seed(workload.seed)
    tokens = torch.randint(workload.vocabulary, (workload.batch, length + 1), generator=generator)
    tokens = tokens.to(workload.device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def make_model(name: str, workload: Workload, length: int) -> nn.Module:
    """A model by the name of its encoding. Its weights depend only on the seed; the global random state is restored."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(workload.seed)
        ours = DecoderLM(
            DecoderConfig(
                layers=workload.layers,
                width=workload.width,
                heads=workload.heads,
                vocabulary=workload.vocabulary,
                encoding="rope" if name == PLAIN_GPT else name,
                train_length=max(length, 2),
            )
        )
        return _plain(ours, length) if name == PLAIN_GPT else ours


def _plain(ours: DecoderLM, length: int) -> PlainGPT:
    """The baseline with the same weights."""
    config = ours.config
    plain = PlainGPT(
        layers=config.layers, width=config.width, heads=config.heads, vocabulary=config.vocabulary, length=length
    )
    plain.load_state_dict(ours.state_dict())
    return plain


def make_trainee(name: str, workload: Workload, length: int) -> Trainee:
    return Trainee(make_model(name, workload, length), workload, length)


@contextlib.contextmanager
def room_for_graphs(count: int) -> Iterator[None]:
    """Let torch keep ``count`` compiled versions of a function. Our models share their functions, and torch silently
    runs functions uncompiled after eight versions."""
    import torch._dynamo

    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=count, accumulated_recompile_limit=count * 32):
        yield


# Agreement -----------------------------------------------------------------------------------------------------------

VERIFY_LENGTH = 33
TOLERANCE = 1e-3
"""Largest error allowed in float32, relative to the largest value."""


def disagreements(workload: Workload) -> list[str]:
    """A message for the loss and each gradient in which our model with rotary positions differs from the baseline.

    Both have the same weights. Width and heads are those of the workload; few layers, ids and sequences suffice.
    """
    few = {
        name: min(count, getattr(workload, name)) for name, count in (("layers", 2), ("vocabulary", 101), ("batch", 2))
    }
    small = replace(workload, **few, precision="float32", compile=False)
    expected, found = (_loss_and_gradients(make_trainee(name, small, VERIFY_LENGTH)) for name in (PLAIN_GPT, "rope"))
    errors = {name: _error(found[name], value) for name, value in expected.items()}
    return [
        f"rope: {name} is off by {error:.1e} of its largest value from {PLAIN_GPT} (allowed {TOLERANCE:.0e})"
        for name, error in errors.items()
        if not error <= TOLERANCE  # true for NaN too
    ]


def _loss_and_gradients(trainee: Trainee) -> dict[str, Tensor]:
    loss = trainee.loss()
    names, parameters = zip(*trainee.model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters)
    return {"loss": loss.detach()} | {f"gradient of {n}": g for n, g in zip(names, gradients, strict=True)}


def _error(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30)).item()
