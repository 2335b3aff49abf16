"""Train one language model, resumable at any moment: ``dape.train`` and ``dape train``."""

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.actions.settings import settings
from dape.errors import UsageError
from dape.files import check_writable_folder, locked
from dape.models.config import DecoderConfig
from dape.training.checks import check_encoding, check_model
from dape.training.config import TrainConfig
from dape.training.device import set_threads, use_device

if TYPE_CHECKING:
    from dape.data.store import Corpus
    from dape.models.decoder import DecoderLM
    from dape.training.language_model import LanguageModelTrainer
    from dape.training.trackers import Tracker
    from dape.training.trainer import Progress


@dataclass(frozen=True)
class Trained:
    """A run: its folder, and how far it is."""

    folder: Path
    step: int
    finished: bool
    """False if it was asked to stop; the same call goes on."""
    taken: int
    """Steps of this call: 0 if the run had reached its last step before."""
    validation_loss: float | None = None
    """Nats per token on held-out text; None where that is too short, or before the end."""
    exit_code: int = 0
    """Of a process that stops here."""

    def model(self, device: str = "cpu") -> "DecoderLM":
        """The weights of the newest checkpoint."""
        from dape.training import checkpoint

        where = checkpoint.find(self.folder)
        return checkpoint.load_model(where, checkpoint.describe(where), use_device(device)).eval()

    def metrics(self) -> list[dict[str, Any]]:
        """What was logged, a dictionary per line: step, loss, ..."""
        from dape.training.run import read_metrics

        return read_metrics(self.folder)


def train(
    data: "str | Path | Corpus" = "stdlib",
    *,
    out: str | Path | None = None,
    resume: bool | None = None,
    device: str = "auto",
    threads: int | None = None,
    tensorboard: bool = False,
    wandb: str | None = None,
    preset: str = "tiny",
    model: DecoderConfig | None = None,
    train: TrainConfig | None = None,
    **changes: Any,
) -> Trained:
    """Train a language model with any positional encoding, or go on with one that was stopped.

    Args:
        data: what ``dape.open_data`` takes, or what it returns.
        out: folder of the run; by default runs/ENCODING-LENGTH-seedN.
        resume: True goes on with the run in ``out``, False refuses to; None does whatever the folder asks for.
        device: ``cpu``, ``cuda``, ``cuda:1``, ...; ``auto`` takes a GPU if there is one.
        threads: of torch on the CPU.
        tensorboard: also write metrics for TensorBoard into the folder.
        wandb: also send metrics to this Weights & Biases project.
        preset: settings to begin with: tiny, small, 125m, 350m, 2.7b or 6.7b.
        model, train: all settings at once, in place of the preset.
        **changes: single settings in place of the preset's: ``encoding="rope"``, ``steps=400``, ``seed=1``, ...

    Returns:
        The run: ``.folder``, ``.step``, ``.finished``, ``.validation_loss``, ``.model()``, ``.metrics()``.

    Raises:
        ValueError: for invalid settings, a model that does not fit into memory, and for a folder with another run.

    Example::

        run = dape.train("book.txt", encoding="dape-kerple", steps=400, out="runs/book")
        print(run.validation_loss)
    """
    if model is None or train is None:
        model, train = settings(preset, changes)
    check_encoding(model.encoding)
    train.check()
    folder = Path(out) if out is not None else default_folder(model, train)
    check_writable_folder(folder, "`out`")
    torch_device = use_device(device)
    set_threads(threads)
    check_model(model, train, str(torch_device))
    with locked(folder):
        trainer = _trainer(data, folder, model, train, torch_device, resume)
        if trainer.step == train.steps:
            return Trained(folder, trainer.step, finished=True, validation_loss=trainer.validation_loss, taken=0)
        trainer.trackers = _trackers(folder, trainer, tensorboard=tensorboard, wandb=wandb)
        # Last, when nothing can fail any more: a folder with settings counts as a run that has begun.
        trainer.config.write(folder)
        return _train(trainer, folder)


def default_folder(model: DecoderConfig, train: TrainConfig) -> Path:
    return Path("runs") / f"{model.encoding}-{model.train_length}-seed{train.seed}"


def _trainer(
    data: "str | Path | Corpus",
    folder: Path,
    model: DecoderConfig,
    train: TrainConfig,
    device: Any,
    resume: bool | None,
) -> "LanguageModelTrainer":
    import torch

    from dape.data.corpora import as_corpus
    from dape.data.store import Corpus
    from dape.training.language_model import LanguageModelTrainer
    from dape.training.run import CONFIG, RunConfig

    name = str(data.folder.resolve()) if isinstance(data, Corpus) else str(data)
    given = RunConfig(model=model, train=train, data=name, threads=torch.get_num_threads())
    begun = (folder / CONFIG).is_file()
    if begun and resume is False:
        raise UsageError(f"{folder} already holds a run; add `resume` to continue it, or choose another `out`")
    if resume and not begun:
        raise UsageError(f"`out` {folder}: there is no run to continue (no {CONFIG} in it)")
    saved = RunConfig.read(folder) if begun else given
    given.check_continues(saved, folder)
    corpus = as_corpus(data, out=folder / "data")
    folder.mkdir(parents=True, exist_ok=True)
    trainer = LanguageModelTrainer(folder, given, corpus, device=device)
    before = trainer.threads_before or saved.threads
    if before != given.threads:
        print(f"note: begun with {before} threads, now {given.threads}: the last bits may differ")
    return trainer


def _trackers(
    folder: Path, trainer: "LanguageModelTrainer", *, tensorboard: bool, wandb: str | None
) -> "list[Tracker]":
    from dape.training.trackers import TensorBoard, WandB

    trackers: list[Tracker] = [TensorBoard(folder)] if tensorboard else []
    if wandb is not None:
        trackers.append(WandB(folder, wandb, asdict(trainer.config)))
    return trackers


def _train(trainer: "LanguageModelTrainer", folder: Path) -> Trained:
    from dape.training.interrupt import Interruption

    _announce(trainer, folder)
    first = trainer.step
    with Interruption() as stop, TrainingBar(trainer) as bar:
        try:
            finished = trainer.run(watch=bar.show, stop=stop)
        finally:
            for tracker in trainer.trackers:
                tracker.close()
    step, taken = trainer.step, trainer.step - first
    if not finished:
        return Trained(folder, step, finished=False, taken=taken, exit_code=stop.exit_code)
    return Trained(folder, step, finished=True, taken=taken, validation_loss=trainer.validation_loss)


def _announce(trainer: "LanguageModelTrainer", folder: Path) -> None:
    model, corpus = trainer.config.model, trainer.corpus
    parameters = sum(p.numel() for p in trainer.model.parameters())
    steps = trainer.train.steps
    begin = f"continuing after step {trainer.step}" if trainer.step else "training"
    print(
        f"{begin}: {model.encoding}, {parameters / 1e6:.2f}M parameters, {steps} steps of {trainer.train.batch} x "
        f"{model.train_length} tokens of {corpus.name} ({len(corpus.train) / 1e6:.1f}M tokens, {corpus.hash[:12]}) "
        f"on {trainer.device}, into {folder}",
        flush=True,
    )


class TrainingBar:
    """Step, loss, speed and time left; where there is no terminal, a line every ten seconds."""

    SECONDS = 10.0

    def __init__(self, trainer: "LanguageModelTrainer") -> None:
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True)
        self._plain = not (console.is_terminal or console.is_jupyter)
        self._bar = progress.Progress(
            progress.TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            progress.BarColumn(),
            progress.TextColumn("loss {task.fields[loss]:.4f}  {task.fields[speed]:.0f} tokens/s"),
            progress.TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=self._plain,
        )
        self._first, self._begin = trainer.step, time.monotonic()
        self._spoken = self._begin
        self._task = self._bar.add_task(
            "", total=trainer.train.steps, completed=trainer.step, loss=float("nan"), speed=0.0
        )

    def __enter__(self) -> "TrainingBar":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, now: "Progress") -> None:
        self._bar.update(self._task, completed=now.step, loss=now.loss, speed=now.tokens_per_second)
        if self._plain and (time.monotonic() - self._spoken > self.SECONDS or now.step == now.steps):
            self._spoken = time.monotonic()
            left = (now.steps - now.step) * (self._spoken - self._begin) / max(1, now.step - self._first)
            speed = f"{now.tokens_per_second:.0f} tokens/s"
            text = f"step {now.step}/{now.steps}  loss {now.loss:.4f}  {speed}  {left:.0f} s left"
            print(text, file=sys.stderr, flush=True)
