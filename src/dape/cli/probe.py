"""``dape probe``: can a model recall what it has read, beyond its training length? Imports torch only when it runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dape.actions.abilities import METHODS as TESTED
from dape.actions.abilities import OUT as TESTS_OUT
from dape.actions.abilities import abilities
from dape.actions.fields import Jobs, OnDevice
from dape.actions.questions import TASKS, QuestionOptions, ask, draw
from dape.actions.recall import METHODS, recall
from dape.cli.console import open_console
from dape.cli.fields import flag_of
from dape.cli.show import show
from dape.errors import UsageError
from dape.experiments.executors import Where
from dape.results.numbers import count
from dape.tasks.abilities.config import AbilityConfig
from dape.tasks.recall.config import DEPTHS, RecallConfig, Task, doublings, given

if TYPE_CHECKING:
    from dape.results.records import Row


@dataclass(frozen=True, kw_only=True)
class Probe(OnDevice, Jobs):
    """Can a model recall what it has read, at lengths beyond training?

    With CHECKPOINT, a trained language model reads held-out text with a pass key or pairs of words inserted, and is
    asked for the pass key or for one of the words. With --train, a small model for each of --methods learns from
    scratch to recall pairs of made-up tokens, and is then tested on longer contexts; runs finished in --out are kept.

    --train --tests NAME... trains them on other generated tests instead, of one ability each: last-value,
    two-token-keys, power-gaps, needle, many-needles, variables, common-word, frequent-words, block-search, counting,
    copying, addition; or on a set: core (the five that differ most in what they need), ruler, all. docs/probe.md
    describes the tests.
    """

    checkpoint: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[CHECKPOINT]")] = None
    """A run's folder (its newest checkpoint), or one checkpoint."""
    train: bool = False
    """Train small models on associative recall, and test those."""
    tests: tuple[str, ...] = ()
    """With --train: generated tests or sets of them, one model for each test; --out is then by default runs/tests."""
    lengths: tuple[int, ...] = ()
    """Tokens of context; by default the training length and its doublings up to 32 times."""
    depths: tuple[float, ...] = DEPTHS
    """Position of the answer in the text: 0 is the beginning, 1 the end."""
    samples: int | None = None
    """Texts per length and depth, the same for every model; by default 64, or 32 with --train."""
    pairs: int | None = None
    """Pairs in a text; by default 4. With --train: most pairs in training, and pairs in the test by depth; by default
    8."""
    tasks: tuple[Task, ...] = TASKS
    """With CHECKPOINT: what to ask for."""
    data: str | None = None
    """With CHECKPOINT: text to insert the answer into (its held-out part); by default what the model was trained on."""
    seed: int = 0
    """With CHECKPOINT: seed of keys, words and positions."""
    json: Path | None = None
    """With CHECKPOINT: append the rows to this file, one JSON object per line."""
    figure: Path | None = None
    """With CHECKPOINT: draw accuracy by length and depth into PATH.png and PATH.svg; for two tasks, into
    PATH-TASK.png and PATH-TASK.svg."""
    methods: tuple[str, ...] = METHODS
    """Positional encodings to train, names from `dape list`."""
    out: Path = Path("runs/probe")
    """Folder for the runs, results.jsonl, table.md, depth.png/.svg and pairs.png/.svg."""
    seeds: int = 1
    """Runs per encoding, with seeds 0, 1, ..."""
    test_pairs: tuple[int, ...] = RecallConfig.test_pairs
    """With --train: numbers of pairs to test with."""
    train_length: int = RecallConfig.train_length
    """Longest training sequence."""
    steps: int = RecallConfig.steps
    """Optimizer steps."""
    batch: int = RecallConfig.batch
    """Sequences per step at the training length; proportionally more of shorter ones."""
    lr: float = RecallConfig.lr
    """Peak learning rate."""
    layers: int = RecallConfig.layers
    """Transformer blocks."""
    width: int = RecallConfig.width
    """Width of the residual stream."""
    heads: int = RecallConfig.heads
    """Attention heads."""
    threads: int | None = None
    """Torch threads on the CPU (with --train, of each run); by default torch decides, or with --train --jobs."""
    where: tyro.conf.OmitArgPrefixes[Where] = field(default_factory=Where)


FOR_CHECKPOINT = ("tasks", "data", "seed", "json", "figure")
FOR_TRAINING = ("methods", "out", "seeds", "jobs", "test_pairs", "train_length", "steps", "batch", "lr")
FOR_TRAINING += ("layers", "width", "heads", "tests")
FOR_RECALL = ("depths", "pairs", "test_pairs")


def run(config: Probe) -> int:
    if not config.train:
        if config.checkpoint is None:
            raise UsageError("CHECKPOINT is missing: name a run or checkpoint, or use --train to train small models")
        _refuse(config, FOR_TRAINING, "is for --train")
        if config.where != Where():
            raise UsageError("--executor and its flags are for --train")
        return _ask(config, config.checkpoint)
    if config.checkpoint is not None:
        raise UsageError(f"--train makes its own models; leave out {config.checkpoint}, or leave out --train")
    _refuse(config, FOR_CHECKPOINT, "is for a CHECKPOINT; with --train everything goes into --out")
    if config.tests:
        _refuse(config, FOR_RECALL, "is for recall, and not for --tests")
        return _train_on_tests(config)
    return _train(config)


def continues(config: Probe) -> str:
    """How to continue after an interruption."""
    return "the same command continues where this one stopped" if config.train else ""


def _ask(config: Probe, checkpoint: Path) -> int:
    options = QuestionOptions(**{each.name: getattr(config, each.name) for each in fields(QuestionOptions)})
    rows: list[Row] = []
    try:
        ask(checkpoint, options, found=rows.extend)
    finally:  # also after an interruption: show what was measured
        _show(rows, options)
    return 0


def _show(rows: "list[Row]", options: QuestionOptions) -> None:
    from dape.report.recall import text_table

    for task in dict.fromkeys(options.tasks):
        of_task = [row for row in rows if row.protocol == task]
        if not of_task:
            continue
        console = open_console()
        console.print(text_table(of_task, width=console.width))
        if options.figure is not None:
            print(f"wrote {' and '.join(map(str, draw(of_task, options, task)))}")
    if options.json is not None and rows:
        print(f"appended {count(len(rows), 'row')} to {options.json}")


def _train(config: Probe) -> int:
    same = ("test_pairs", "train_length", "steps", "batch", "lr", "layers", "width", "heads")
    settings = RecallConfig(
        lengths=tuple(sorted(config.lengths)) or doublings(config.train_length),
        depths=tuple(sorted(config.depths)),
        **{name: getattr(config, name) for name in same},
        **given(samples=config.samples, pairs=config.pairs),
    )
    where = {name: getattr(config, name) for name in ("methods", "seeds", "out", "jobs", "threads", "device")}
    return show(recall(settings, executor=config.where.build(config.jobs), **where))


def _train_on_tests(config: Probe) -> int:
    same = ("tests", "train_length", "steps", "batch", "lr", "layers", "width", "heads")
    settings = AbilityConfig(
        lengths=tuple(sorted(config.lengths)),
        **{name: getattr(config, name) for name in same},
        **given(samples=config.samples),
    )
    where = {name: getattr(config, name) for name in ("methods", "seeds", "out", "jobs", "threads", "device")}
    # The defaults of Probe are those of recall; the tests have others.
    where |= {"methods": TESTED} if config.methods == Probe.methods else {}
    where |= {"out": TESTS_OUT} if config.out == Probe.out else {}
    return show(abilities(settings, executor=config.where.build(config.jobs), **where))


def _refuse(config: Probe, names: Sequence[str], why: str) -> None:
    """Refuse flags that would have no effect."""
    for name in names:
        if getattr(config, name) != getattr(Probe, name):
            raise UsageError(f"{flag_of(name)} {why}")
