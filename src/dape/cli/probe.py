"""``dape probe``: can a model fetch what it has read, beyond its training length? Imports torch only when it runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dape.actions.abilities import METHODS as TESTED
from dape.actions.abilities import OUT as TESTS_OUT
from dape.actions.abilities import abilities
from dape.actions.questions import TASKS, QuestionOptions, ask, draw
from dape.actions.recall import METHODS, recall
from dape.cli.console import open_console
from dape.cli.show import show
from dape.errors import UsageError
from dape.experiments.executors import Where
from dape.results.numbers import count
from dape.tasks.abilities.config import AbilityConfig
from dape.tasks.recall.config import DEPTHS, RecallConfig, Task, doublings, given

if TYPE_CHECKING:
    from dape.results.records import Row


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Can a model fetch what it has read, at lengths beyond training?

    With CHECKPOINT, a trained language model is asked about held-out text into which something was written: a pass key,
    or one of several pairs of words. With --train, small models learn to recall pairs of made-up tokens from scratch,
    one for each of --methods, and are then tested on longer contexts; what is finished in --out is not done again.

    --tests trains them on other generated tests instead, each of one ability: last-value, two-token-keys, power-gaps,
    needle, many-needles, variables, common-word, frequent-words, block-search, counting, copying, addition; or a set:
    core (four that differ most in what they need), ruler, all. docs/probe.md says what each isolates.
    """

    checkpoint: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[CHECKPOINT]")] = None
    """A run's folder (its newest checkpoint), or one checkpoint."""
    train: bool = False
    """Train small models on associative recall instead, and test those."""
    tests: tuple[str, ...] = ()
    """With --train: generated tests or sets of them, a model for each (into runs/tests unless --out says otherwise)."""
    lengths: tuple[int, ...] = ()
    """Tokens of context; by default the training length and its doublings up to 32 times."""
    depths: tuple[float, ...] = DEPTHS
    """Where the answer stands: 0 is the beginning of the text, 1 its end."""
    samples: int | None = None
    """Texts per length and depth, the same for every model; by default 64, and 32 with --train."""
    pairs: int | None = None
    """Pairs in a text, by default 4. With --train the most in training and those in the test by depth, by default 8."""
    tasks: tuple[Task, ...] = TASKS
    """What to ask (with CHECKPOINT)."""
    data: str | None = None
    """Text around (with CHECKPOINT), its held-out part is used; by default what the model was trained on."""
    seed: int = 0
    """Seed of keys, words and places (with CHECKPOINT)."""
    json: Path | None = None
    """Append the rows to this file (with CHECKPOINT), one JSON object per line."""
    figure: Path | None = None
    """Draw accuracy by length and depth (with CHECKPOINT) into PATH.png and PATH.svg; of two tasks, PATH-TASK."""
    methods: tuple[str, ...] = METHODS
    """Positional encodings to train, names from `dape list`."""
    out: Path = Path("runs/probe")
    """Folder for what is trained: results.jsonl, table.md, depth.png/.svg, pairs.png/.svg, and the runs."""
    seeds: int = 1
    """Runs per encoding, with seeds 0, 1, ..."""
    jobs: int | None = None
    """Runs side by side; by default one per core, one on a GPU."""
    test_pairs: tuple[int, ...] = RecallConfig.test_pairs
    """Numbers of pairs to test with (with --train)."""
    train_length: int = RecallConfig.train_length
    """Longest training sequence."""
    steps: int = RecallConfig.steps
    """Optimizer steps."""
    batch: int = RecallConfig.batch
    """Sequences of the longest per step; shorter ones are proportionally more."""
    lr: float = RecallConfig.lr
    """Highest learning rate."""
    layers: int = RecallConfig.layers
    """Transformer blocks."""
    width: int = RecallConfig.width
    """Numbers per token in the residual stream."""
    heads: int = RecallConfig.heads
    """Attention heads."""
    device: str = "auto"
    """Where to compute: cpu, cuda, ...; auto takes a GPU if there is one."""
    threads: int | None = None
    """Threads of torch on the CPU, with --train for each run; None leaves the choice to torch, and to --jobs."""
    where: tyro.conf.OmitArgPrefixes[Where] = field(default_factory=Where)


FOR_CHECKPOINT = ("tasks", "data", "seed", "json", "figure")
FOR_TRAINING = ("methods", "out", "seeds", "jobs", "test_pairs", "train_length", "steps", "batch", "lr")
FOR_TRAINING += ("layers", "width", "heads", "tests")
FOR_RECALL = ("depths", "pairs", "test_pairs")


def run(config: Probe) -> int:
    if not config.train:
        if config.checkpoint is None:
            raise UsageError("name a run or checkpoint to ask, or use --train to train small models")
        _refuse(config, FOR_TRAINING, "is for --train")
        if config.where != Where():
            raise UsageError("--executor and what belongs to it are for --train")
        return _ask(config, config.checkpoint)
    if config.checkpoint is not None:
        raise UsageError(f"--train makes its own models; leave out {config.checkpoint}, or leave out --train")
    _refuse(config, FOR_CHECKPOINT, "is for a CHECKPOINT; with --train everything goes into --out")
    if config.tests:
        _refuse(config, FOR_RECALL, "is for recall, and not for --tests")
        return _train_on_tests(config)
    return _train(config)


def _ask(config: Probe, checkpoint: Path) -> int:
    options = QuestionOptions(**{each.name: getattr(config, each.name) for each in fields(QuestionOptions)})
    rows: list[Row] = []
    try:
        ask(checkpoint, options, found=rows.extend)
    finally:  # what was measured before an interruption too
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
    # Their own defaults, where recall's were not changed.
    where |= {"methods": TESTED} if config.methods == Probe.methods else {}
    where |= {"out": TESTS_OUT} if config.out == Probe.out else {}
    return show(abilities(settings, executor=config.where.build(config.jobs), **where))


def _refuse(config: Probe, names: Sequence[str], why: str) -> None:
    """Rather than leave a flag without effect."""
    for name in names:
        if getattr(config, name) != getattr(Probe, name):
            raise UsageError(f"--{name.replace('_', '-')} {why}")
