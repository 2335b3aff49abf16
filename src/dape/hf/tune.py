"""Train an adapter (or all of a model, to compare). A step is a function of the weights and its number, so what was
stopped goes on to the weights it would have had."""

import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from torch import Tensor, nn

from dape.data.store import Corpus
from dape.data.windows import TrainingWindows
from dape.errors import UsageError
from dape.files import replacing, write_text
from dape.hf.adapter import HANDLE, project_
from dape.reading import check_seal, read_json, reading, sealed
from dape.training.config import TrainConfig
from dape.training.optim import learning_rate
from dape.training.tensors import tensors_hash, write_tensors

WEIGHTS, STATE, SHA256 = "tuning.safetensors", "tuning.json", "sha256"
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
            raise UsageError(f"--length must be at least 2, got {self.length}")

    def schedule(self) -> TrainConfig:
        return TrainConfig(
            steps=self.steps, batch=self.batch, lr=self.lr, seed=self.seed, warmup_share=0.05, clip=self.clip
        )


class Lessons(Protocol):
    """What is learned."""

    def loss(self, model: nn.Module, step: int) -> Tensor: ...


class TextLessons:
    """The next token, in windows of text."""

    def __init__(self, corpus: Corpus, tuning: Tuning) -> None:
        self._windows = TrainingWindows(corpus.train, length=tuning.length, seed=tuning.seed)
        self._batch = tuning.batch

    def loss(self, model: nn.Module, step: int) -> Tensor:
        tokens = torch.from_numpy(self._windows.batch(step, self._batch)).to(next(model.parameters()).device)
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


class Tuner:
    """Training of what has ``requires_grad``, in a folder."""

    def __init__(self, model: nn.Module, lessons: Lessons, tuning: Tuning, folder: Path) -> None:
        tuning.check()
        self.model, self.lessons, self.tuning, self.folder = model, lessons, tuning, folder
        self.named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.named:
            raise ValueError("nothing of the model is to be trained: every parameter is frozen")
        self.optimizer = torch.optim.AdamW(
            self.named.values(), lr=tuning.lr, betas=(0.9, 0.95), weight_decay=tuning.weight_decay
        )
        self.step = 0
        self._resume()

    def run(self, *, watch: Callable[[int, float], None], stop: Callable[[], bool]) -> bool:
        """To the end, or until ``stop()``; either way the last step is saved. True if the end was reached."""
        self.model.train()
        saved = time.monotonic()
        while self.step < self.tuning.steps and not stop():
            watch(self.step + 1, self.take_step())
            if time.monotonic() - saved > SAVE_SECONDS:
                self.save()
                saved = time.monotonic()
        self.model.eval()
        self.save()
        return self.step == self.tuning.steps

    def take_step(self) -> float:
        with _dropout_of(self.model, f"{self.tuning.seed} {self.step}"):
            loss = self.lessons.loss(self.model, self.step)
            loss.backward()  # here too: gradient checkpointing draws again what it drew
        if not torch.isfinite(loss):
            raise ValueError(
                f"step {self.step + 1}: the loss is {loss.item()}; try a lower --lr than {self.tuning.lr:g}"
            )
        nn.utils.clip_grad_norm_(self.named.values(), self.tuning.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.tuning.schedule())
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if hasattr(self.model, HANDLE):
            project_(self.model)
        self.step += 1
        return loss.item()

    # Stopping and going on -------------------------------------------------------------------------------------------

    def save(self) -> None:
        tensors = {f"p.{name}": p.detach() for name, p in self.named.items()}
        for name, p in self.named.items():
            tensors |= {f"{key}.{name}": value for key, value in self.optimizer.state.get(p, {}).items()}
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(self.folder / WEIGHTS) as path:
            # With their step and checksum: killed between the two files, it would go on from another.
            write_tensors(tensors, path, {"step": str(self.step), SHA256: tensors_hash(tensors, str(self.step))})
        write_text(self.folder / STATE, json.dumps(sealed({"step": self.step, **asdict(self.tuning)})) + "\n")

    def _resume(self) -> None:
        state = self.folder / STATE
        if not state.is_file():
            return
        try:
            saved = read_json(state)
            with reading(state, "is damaged"):
                check_seal(saved)
            self._check_same(saved)
            tensors, step = _read(self.folder / WEIGHTS)
            self._put_back(tensors)
            self.step = int(step or saved["step"])
        except (ValueError, KeyError, RuntimeError, OSError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"{self.folder} is damaged ({error}); delete it to begin the training anew") from error

    @torch.no_grad()
    def _put_back(self, tensors: Mapping[str, Tensor]) -> None:
        for name, p in self.named.items():
            p.copy_(tensors[f"p.{name}"])
            keys = ("step", "exp_avg", "exp_avg_sq")
            self.optimizer.state[p] = {key: tensors[f"{key}.{name}"] for key in keys if f"{key}.{name}" in tensors}

    def _check_same(self, saved: Mapping[str, Any]) -> None:
        now = asdict(self.tuning)
        changed = [
            f"{name} was {saved.get(name)}, now {value}" for name, value in now.items() if saved.get(name) != value
        ]
        if changed:
            raise UsageError(f"{self.folder} was begun with other settings: {'; '.join(changed)}; use another --out")


def _read(path: Path) -> tuple[dict[str, Tensor], str | None]:
    """Tensors, and the step they are of (older folders have it in the file beside alone, and no checksum)."""
    with reading(path, "is damaged"), safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        noted = file.metadata() or {}
        step = noted.get("step")
        if noted.get(SHA256) not in (None, tensors_hash(tensors, step or "")):
            raise ValueError("checksums differ, it is not what was written")
        return tensors, step


@contextmanager
def _dropout_of(model: nn.Module, words: str) -> Iterator[None]:
    """A model's own dropout (GPT-2 has some) is a function of the words, not of what was drawn before."""
    device = next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(zlib.crc32(words.encode()))
        yield
