"""Train an adapter (or all of a model, to compare) by the one training loop."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors import safe_open
from torch import Tensor, nn

from dape.data.store import Corpus
from dape.errors import UsageError
from dape.reading import read_json, reading, short
from dape.tasks.base import Task
from dape.tasks.text import TextTask
from dape.training.config import TrainConfig
from dape.training.trainer import Trainer

OLD_WEIGHTS, OLD_STATE = "tuning.safetensors", "tuning.json"
SAVE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Tuning:
    length: int
    """Tokens per training sequence."""
    steps: int = 300
    batch: int = 8
    lr: float = 1e-2
    seed: int = 0
    weight_decay: float = 0.0
    clip: float = 1.0

    def check(self) -> None:
        self.schedule().check()
        if self.length < 2:
            raise UsageError(f"`length` must be at least 2, got {self.length}")

    def schedule(self) -> TrainConfig:
        return TrainConfig(
            steps=self.steps,
            batch=self.batch,
            lr=self.lr,
            seed=self.seed,
            warmup_share=0.05,
            weight_decay=self.weight_decay,
            clip=self.clip,
            save_every=0,
            save_seconds=SAVE_SECONDS,
            keep=1,
        )


class HostTextTask(TextTask):
    """The next token, for a model of the transformers library."""

    def __init__(self, corpus: Corpus, tuning: Tuning) -> None:
        super().__init__(corpus, length=tuning.length, batch=tuning.batch, seed=tuning.seed)

    def logits(self, model: Any, tokens: Int[Tensor, "b t"], drawn: Any) -> Float[Tensor, "b t n"]:
        return model(input_ids=tokens, use_cache=False).logits

    def draw(self, model: Any, generator: torch.Generator) -> None:
        return None

    def validate(self, model: nn.Module) -> float | None:
        """Nothing is validated in training: adapters are measured at several lengths before and after."""
        return None


class Tuner(Trainer):
    """Train the parameters that have ``requires_grad``, in a folder. AdamW decays all of them alike."""

    def __init__(self, model: nn.Module, task: Task, tuning: Tuning, folder: Path) -> None:
        tuning.check()
        learned = [p for p in model.parameters() if p.requires_grad]
        optimizer = None
        if learned:
            optimizer = torch.optim.AdamW(learned, lr=tuning.lr, betas=(0.9, 0.95), weight_decay=tuning.weight_decay)
        self._tuning = tuning
        super().__init__(model, task, tuning.schedule(), folder, described=asdict(tuning), optimizer=optimizer)

    def _resume(self) -> None:
        super()._resume()
        if self.step == 0 and (self.folder / OLD_STATE).is_file():
            self.step = _go_on_from_old(self.folder, self.model, self.optimizer, self._tuning)


def _go_on_from_old(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, tuning: Tuning) -> int:
    """Weights and averages in two files, as version 0.1 saved them. Returns their step."""
    saved = read_json(folder / OLD_STATE, _ADVICE)
    changed = [
        f"{name} was {short(saved.get(name))}, now {value}"
        for name, value in asdict(tuning).items()
        if saved.get(name) != value
    ]
    if changed:
        raise UsageError(f"{folder} was begun with other settings: {'; '.join(changed)}; use another `out`")
    path = folder / OLD_WEIGHTS
    with reading(path, "is damaged", _ADVICE), safe_open(path, framework="pt") as file, torch.no_grad():
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        # Killed between the two files, the older one is of another step.
        step = int((file.metadata() or {}).get("step", saved["step"]))
        for name, p in model.named_parameters():
            if p.requires_grad:
                p.copy_(tensors[f"p.{name}"])
                keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{key}.{name}" in tensors]
                optimizer.state[p] = {key: tensors[f"{key}.{name}"] for key in keys}
    return step


_ADVICE = "Delete this folder to begin the training anew."
