"""``dape bench che``: how fast examples are drawn, and how fast models learn them. Imports torch only when it runs."""

import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dape.bench.options import WithFile, check_common
from dape.bench.records import Column, Record, Results, count, make_table, text, threads_or_device
from dape.bench.runner import Once, Plan, command, interleaved
from dape.errors import UsageError, check_heads
from dape.tasks.chomsky.catalogue import TASKS, find
from dape.tasks.chomsky.config import WIDTHS, CheConfig, Subject

if TYPE_CHECKING:
    from rich.table import Table

DRAWS = 20
"""Timed draws: a draw takes a millisecond, a training step a second."""


@dataclass(frozen=True, kw_only=True)
class CheBench(WithFile):
    """Examples and training steps per second on the Chomsky-hierarchy tasks.

    A step is forward, loss, backward, clipping, Adam and projection of constrained parameters, at the paper's shape:
    batch 128, 5 layers, width 256. Drawing the examples is timed separately, and shown as its share of draw and step.
    The first method is timed on every task, the others on --step-tasks. The median of --repeats counts.
    """

    tasks: tuple[str, ...] = tuple(TASKS)
    """Tasks whose examples are drawn, and learned with the first method."""
    step_tasks: tuple[str, ...] = ("even_pairs", "duplicate_string")
    """Tasks that all methods are timed on."""
    methods: tuple[str, ...] = ("randomized-alibi", "randomized-rope", "dape-kerple")
    """Positional encodings, names from `dape list`."""
    lengths: tuple[int, ...] = (20, 40)
    """Lengths of the input. The model also reads a token for each symbol of the answer."""
    quick: bool = False
    """Only even_pairs, duplicate_string and solve_equation at length 20."""
    batch: int = CheConfig.batch
    """Examples per step."""
    width: int = WIDTHS["paper"]
    """Numbers per token."""
    layers: int = CheConfig.layers
    """Encoder layers."""
    heads: int = CheConfig.heads
    """Attention heads."""
    repeats: int = 3
    """Timed steps."""
    warm_up: int = 1
    """Untimed steps before them."""
    threads: int | None = None
    """Threads of torch; None leaves the choice to torch."""


def run(config: CheBench) -> int:
    """Measure and report. Returns the exit code: 130 if interrupted, after reporting what was finished."""
    config = checked(config)
    parts = [
        Once(
            what=f"{task}, length {length}, {method}",
            do=lambda case=(task, length, method): [measure_case(config, *case)],
        )
        for task, length, method in cases(config)
    ]
    return command(config, lambda threads: Plan(parts=parts, steps=len(parts)), tables)


def checked(config: CheBench) -> CheBench:
    """The options with full names of tasks. Raises UsageError on invalid ones, before anything slow is imported."""
    if config.quick:
        config = replace(config, tasks=("even_pairs", "duplicate_string", "solve_equation"), lengths=(20,))
    counts = ("batch", "width", "layers", "heads", "repeats", "warm_up", "threads")
    check_common(config, *counts, names="methods")
    check_heads(config.width, config.heads)
    if not config.tasks:
        raise UsageError("`tasks` needs at least one name")
    named = {n: tuple(dict.fromkeys(find(t).name for t in getattr(config, n))) for n in ("tasks", "step_tasks")}
    return replace(config, **named)


def cases(config: CheBench) -> list[tuple[str, int, str]]:
    """Task, length and method of every row."""
    first, *others = config.methods
    tasks = dict.fromkeys([*config.tasks, *(config.step_tasks if others and not config.quick else ())])
    return [
        (task, length, method)
        for task in tasks
        for length in config.lengths
        for method in (first, *(others if task in config.step_tasks else ()))
    ]


def measure_case(config: CheBench, task: str, length: int, method: str) -> Record:
    """Time draws and steps of one row."""
    import numpy as np
    import torch

    from dape.tasks.chomsky.model import total_length
    from dape.training.chomsky import ChomskyTrainer

    settings = CheConfig(width=config.width, layers=config.layers, heads=config.heads, batch=config.batch)
    generator = np.random.default_rng(0)
    subject = Subject(task=task, method=method, seed=0, lr=1e-4)
    with tempfile.TemporaryDirectory() as folder:
        trainer = ChomskyTrainer(Path(folder), settings, subject, torch.device("cpu"))
        learned, model, examples = trainer.task, trainer.model, trainer.task.examples
        sample = examples.sample(generator, config.batch, length)
        drawing = _median(lambda: examples.sample(generator, config.batch, length), DRAWS, config.warm_up)
        update = partial(trainer.updater.take, step=0)
        step = _median(lambda: update(learned.batch_of(model, sample, step=0)), config.repeats, config.warm_up)
    return {
        "task": task,
        "length": length,
        "tokens": total_length(settings, examples, length),  # that the model reads, answer included
        "method": method,
        "draw_ms": 1e3 * drawing,
        "samples_per_second": config.batch / drawing,
        "step_ms": 1e3 * step,  # without drawing
        "steps_per_second": 1 / (drawing + step),
        "draw_share": drawing / (drawing + step),
    }


def _median(call: Callable[[], object], repeats: int, warm_up: int) -> float:
    return statistics.median(seconds for _, seconds in interleaved({"": call}, repeats, warm_up=warm_up))


def tables(results: Results) -> "Iterator[Table]":
    shape = "batch {batch}, {layers} layers, width {width}, {heads} heads".format(**results.settings)
    columns = [
        text("task"),
        count("length"),
        count("tokens"),
        text("method"),
        Column("samples/s", lambda r: f"{r['samples_per_second']:,.0f}"),
        Column("step ms", lambda r: f"{r['step_ms']:.0f}"),
        Column("steps/s", lambda r: f"{r['steps_per_second']:.2f}"),
        Column("draw", lambda r: f"{100 * r['draw_share']:.2f}%"),
    ]
    caption = "draw: share of drawing the examples in the time of a step with drawing"
    yield make_table(f"{shape}, {threads_or_device(results.settings)}", caption, results.records, columns)
