"""``dape.train`` and ``dape train``: train one language model, resumable at any moment."""

import contextlib
import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.actions.progress import TimeLeft, progress_console
from dape.actions.settings import settings
from dape.errors import UsageError
from dape.files import check_writable_folder, locked
from dape.fitting import to_terminal
from dape.models.config import DecoderConfig
from dape.training.checks import check_encoding, check_model
from dape.training.config import TrainConfig
from dape.training.device import set_threads, use_device
from dape.training.interrupt import stop_with
from dape.training.launch import (
    Mode,
    ProcessesFailedError,
    check_processes,
    check_shares,
    in_group,
    launcher,
    restart,
    run_processes,
)
from dape.verbosity import is_quiet, tell

if TYPE_CHECKING:
    from dape.data.store import Corpus
    from dape.models.decoder import DecoderLM
    from dape.training.language_model import LanguageModelTrainer
    from dape.training.parallel import Group
    from dape.training.run import RunConfig
    from dape.training.trackers import Tracker
    from dape.training.trainer import Progress


@dataclass(frozen=True)
class Trained:
    """A run: its folder and its progress."""

    folder: Path
    step: int
    finished: bool
    """False if it was asked to stop; the same call continues it."""
    taken: int
    """Steps of this call: 0 if the run had already reached its last step."""
    validation_loss: float | None = None
    """Nats per token on held-out text; None before the end, and if that text is too short."""
    exit_code: int = 0
    """Exit code for a process that ends after this call."""

    def model(self, device: str = "cpu") -> "DecoderLM":
        """The model with the weights of the newest checkpoint, in evaluation mode."""
        from dape.training.checkpoint import load_model
        from dape.training.description import describe, find

        where = find(self.folder)
        description = describe(where)
        return load_model(where, description, use_device(device)).eval()

    def metrics(self) -> list[dict[str, Any]]:
        """The logged metrics, a dictionary per line: step, loss, ..."""
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
    parallel: Mode | None = None,
    processes: int = 1,
    restarts: int = 3,
    preset: str = "tiny",
    model: DecoderConfig | None = None,
    train: TrainConfig | None = None,
    **changes: Any,
) -> Trained:
    """Train a language model with any positional encoding, or continue a run that was stopped.

    Args:
        data: what ``dape.open_data`` takes, or what it returns.
        out: folder of the run; by default runs/ENCODING-LENGTH-seedN.
        resume: True continues the run in ``out`` and fails without one; False fails if there is one; None continues a
            run if there is one and starts a new one otherwise.
        device: ``cpu``, ``cuda``, ``cuda:1``, ...; ``auto`` takes a GPU if there is one.
        threads: torch threads on the CPU.
        tensorboard: also write metrics for TensorBoard into the folder.
        wandb: also send metrics to this Weights & Biases project.
        parallel: how several processes share a run: ``ddp`` (each has the whole model; the default) or ``fsdp`` (each
            has a share of it). The losses are those of one process.
        processes: processes to start on this machine. Under torchrun, the processes that it has started are used.
        restarts: how often to restart the processes after one was killed.
        preset: basic settings: tiny, small, 125m, 350m, 2.7b or 6.7b.
        model: all settings of the model at once, in place of the preset.
        train: all settings of training at once, likewise.
        **changes: single settings in place of the preset's: ``encoding="rope"``, ``steps=400``, ``seed=1``, ...

    Returns:
        The run: ``.folder``, ``.step``, ``.finished``, ``.validation_loss``, ``.model()``, ``.metrics()``.

    Raises:
        ValueError: for invalid settings, a model that does not fit into memory, and a folder with another run.

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
    from dape.data.corpora import check_data  # here, because it imports numpy and `dape --help` need not

    check_data(data)
    if not in_group():  # processes that were restarted continue what they have begun
        _check_folder(data, folder, model, train, resume)
    check_processes(processes)
    check_shares(train.batch, train.accumulate, processes)
    if processes > 1 and not in_group():
        given = {"resume": resume, "device": device, "threads": threads, "tensorboard": tensorboard, "wandb": wandb}
        return _launch(name_of(data), folder, model, train, {**given, "parallel": parallel}, processes, restarts)
    if in_group():
        stop_with(launcher())
    torch_device = use_device(own_device(device))
    set_threads(threads)
    check_model(model, train, str(torch_device))

    from dape.training.parallel import joined

    with joined(parallel, torch_device) as group, contextlib.ExitStack() as stack:
        trainer = _trainer(data, folder, model, train, torch_device, resume, group, stack)
        if trainer.step == train.steps:
            return Trained(folder, trainer.step, finished=True, validation_loss=trainer.validation_loss, taken=0)
        if group.is_first:
            trainer.trackers = _trackers(folder, trainer, tensorboard=tensorboard, wandb=wandb)
            # Last, after everything that can fail: a folder with settings counts as a run.
            trainer.config.write(folder)
        return _train(trainer, folder)


def own_device(device: str) -> str:
    """The device of this process: each process of a machine takes another GPU."""
    local = os.environ.get("LOCAL_RANK")
    if local is None or device not in ("auto", "cuda"):
        return device
    import torch

    return f"cuda:{local}" if torch.cuda.is_available() else device


def name_of(data: "str | os.PathLike[str] | Corpus") -> str:
    from dape.data.store import Corpus

    return str(data.folder.resolve()) if isinstance(data, Corpus) else str(data)


def _launch(
    data: str,
    folder: Path,
    model: DecoderConfig,
    train: TrainConfig,
    given: dict[str, Any],
    processes: int,
    restarts: int,
) -> Trained:
    """Make the same call in several processes, and read the result from the folder."""
    from dape.training.description import CHECKPOINTS, checkpoints
    from dape.training.run import read_metrics

    def reached() -> int:
        return max((int(path.name.removeprefix("step-")) for path in checkpoints(folder / CHECKPOINTS)), default=0)

    first = reached()
    everything = {**given, "data": data, "out": str(folder), "model": asdict(model), "train": asdict(train)}
    code = run_processes(["-m", "dape.cli.process", "train", json.dumps(everything)], processes, restarts=restarts)
    if 0 < code < 128:
        raise ProcessesFailedError(code, processes, "training")
    step = reached()
    losses = [line["validation_loss"] for line in read_metrics(folder) if "validation_loss" in line]
    finished = code == 0
    loss = losses[-1] if finished and losses and step > first else None
    return Trained(folder, step, finished=finished, taken=step - first, validation_loss=loss, exit_code=code)


def default_folder(model: DecoderConfig, train: TrainConfig) -> Path:
    return Path("runs") / f"{model.encoding}-{model.train_length}-seed{train.seed}"


def _trainer(
    data: "str | Path | Corpus",
    folder: Path,
    model: DecoderConfig,
    train: TrainConfig,
    device: Any,
    resume: bool | None,
    group: "Group",
    stack: contextlib.ExitStack,
) -> "LanguageModelTrainer":
    """The trainer of this process. The first process locks the folder and prepares the text for the others."""
    from dape.training.language_model import LanguageModelTrainer

    if group.any(restart() > 0):
        resume = None  # restarted, perhaps with a new host that has no folder yet: continue if there is a run

    def first() -> None:
        if group.is_first:
            stack.enter_context(locked(folder))
            _begin(data, folder, model, train, resume)

    if not group.alone:
        group.together(lambda: group.check(train))
        group.check_same(data=name_of(data), model=asdict(model), train=asdict(train), parallel=group.mode)
    group.together(first)
    given, saved, corpus = group.together(lambda: _begin(data, folder, model, train, resume))
    group.check_same(text=corpus.hash, tokenizer=corpus.tokenizer.fingerprint)
    trainer = group.together(
        lambda: LanguageModelTrainer(folder, given, corpus, device=device, group=group), ValueError
    )
    before = trainer.threads_before or saved.threads
    if before != given.threads and group.is_first:
        print(f"note: started with {before} threads, now {given.threads}: the last bits may differ")
    return trainer


def _check_folder(
    data: "str | Path | Corpus", folder: Path, model: DecoderConfig, train: TrainConfig, resume: bool | None
) -> "RunConfig | None":
    """The settings of the run in the folder, None if there is none. Raises UsageError if the call does not fit it.

    Without torch, so that a forgotten `resume` or `out` shows at once.
    """
    from dape.training.run import CONFIG, RunConfig

    begun = (folder / CONFIG).is_file()
    if begun and resume is False:
        raise UsageError(f"{folder} already holds a run; add `resume` to continue it, or choose another `out`")
    if resume and not begun:
        raise UsageError(f"`out` {folder}: there is no run to continue (no {CONFIG} in it)")
    if not begun:
        return None
    saved = RunConfig.read(folder)
    RunConfig(model=model, train=train, data=name_of(data), threads=saved.threads).check_continues(saved, folder)
    return saved


def _begin(
    data: "str | Path | Corpus", folder: Path, model: DecoderConfig, train: TrainConfig, resume: bool | None
) -> "tuple[RunConfig, RunConfig, Corpus]":
    """The given settings, the settings the run was started with, and its text."""
    import torch

    from dape.data.corpora import as_corpus
    from dape.training.run import RunConfig

    given = RunConfig(model=model, train=train, data=name_of(data), threads=torch.get_num_threads())
    saved = _check_folder(data, folder, model, train, resume) or given
    corpus = as_corpus(data, out=folder / "data")
    folder.mkdir(parents=True, exist_ok=True)
    return given, saved, corpus


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

    group, first = trainer.group, trainer.step
    with contextlib.ExitStack() as stack:
        watch: Any = lambda progress: None  # noqa: E731
        if group.is_first:
            _announce(trainer, folder)
            watch = stack.enter_context(TrainingBar(trainer)).show
        message = {} if group.alone else {"message": "stopping after this step and saving" if group.is_first else ""}
        stop = stack.enter_context(Interruption(**message, patient=not group.alone))
        try:
            finished = trainer.run(watch=watch, stop=stop)
        finally:
            for tracker in trainer.trackers:
                tracker.close()
    step, taken = trainer.step, trainer.step - first
    if not finished:
        code = stop.exit_code or 128 + signal.SIGTERM  # without a code, another process of the group was asked to stop
        return Trained(folder, step, finished=False, taken=taken, exit_code=code)
    return Trained(folder, step, finished=True, taken=taken, validation_loss=trainer.validation_loss)


def _announce(trainer: "LanguageModelTrainer", folder: Path) -> None:
    if is_quiet():
        return
    model, corpus = trainer.config.model, trainer.corpus
    parameters = sum(p.numel() for p in trainer.model.parameters())
    begin = f"continuing after step {trainer.step}" if trainer.step else "training"
    line = (
        f"{begin}: {model.encoding}, {parameters / 1e6:.2f}M parameters, {trainer.train.steps} steps of "
        f"{trainer.train.batch} x {model.train_length} tokens of {corpus.name} ({len(corpus.train) / 1e6:.1f}M tokens, "
        f"{corpus.hash[:12]}) on {trainer.device}, into {folder}"
    )
    print(to_terminal(line), flush=True)


class TrainingBar:
    """Step, loss, speed and time left: a bar on a terminal, else a line every ten seconds. With --quiet, nothing."""

    SECONDS = 10.0

    def __init__(self, trainer: "LanguageModelTrainer") -> None:
        from rich import progress

        console, drawn = progress_console()
        self._plain = not drawn
        self._bar = progress.Progress(
            progress.TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            progress.BarColumn(),
            progress.TextColumn("loss {task.fields[loss]:.4f}  {task.fields[speed]:.0f} tokens/s"),
            progress.TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            disable=self._plain,
        )
        self._left, self._spoken = TimeLeft(trainer.step / trainer.train.steps), time.monotonic()
        self._task = self._bar.add_task(
            "", total=trainer.train.steps, completed=trainer.step, loss=float("nan"), speed=0.0, left=""
        )

    def __enter__(self) -> "TrainingBar":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, now: "Progress") -> None:
        left = self._left.words(now.step / now.steps)
        self._bar.update(self._task, completed=now.step, loss=now.loss, speed=now.tokens_per_second, left=left)
        if self._plain and (time.monotonic() - self._spoken > self.SECONDS or now.step == now.steps):
            self._spoken = time.monotonic()
            speed = f"{now.tokens_per_second:.0f} tokens/s"
            tell(f"step {now.step}/{now.steps}  loss {now.loss:.4f}  {speed}  {left}".rstrip())
