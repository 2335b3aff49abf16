"""``dape bench che``: how fast examples are drawn, and how fast models learn them. Imports torch only when it runs."""

import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.bench.options import INTERRUPTED, check_counts, check_encoding, check_lengths, circumstances, torch_threads
from dape.bench.progress import Progress
from dape.bench.records import new_table, print_table, write_json
from dape.errors import UsageError
from dape.files import check_writable_file
from dape.tasks.chomsky.catalogue import TASKS, find
from dape.tasks.chomsky.config import WIDTHS, CheConfig, Subject

if TYPE_CHECKING:
    from rich.table import Table

DRAWS = 20
"""Drawing takes a millisecond, a step a second: it is repeated more often."""


@dataclass(frozen=True, kw_only=True)
class CheBench:
    """Examples and training steps per second on the Chomsky-hierarchy tasks.

    A step is forward, loss, backward, clipping, Adam and projection of constrained parameters, at the paper's shape:
    batch 128, 5 layers, width 256. Drawing the examples is timed apart and given as a share of both together. The first
    method is timed on every task, the others on --step-tasks. Medians of --repeats count.
    """

    tasks: tuple[str, ...] = tuple(TASKS)
    """Tasks whose examples are drawn, and learned with the first method."""
    step_tasks: tuple[str, ...] = ("even_pairs", "duplicate_string")
    """Tasks that all methods are timed on."""
    methods: tuple[str, ...] = ("randomized-alibi", "randomized-rope", "dape-kerple")
    """Positional encodings, names from `dape list`."""
    lengths: tuple[int, ...] = (20, 40)
    """Lengths of the input; the model reads the places of the answer too."""
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
    json: Path | None = None
    """Also write the results to this file."""


@dataclass(frozen=True, kw_only=True)
class CheRow:
    task: str
    length: int
    tokens: int
    """What the model reads, answer included."""
    method: str
    draw_ms: float
    """Median time to draw a batch."""
    samples_per_second: float
    step_ms: float
    """Median time of a step without drawing."""
    steps_per_second: float
    """Drawing included."""
    draw_share: float
    """Part of the whole that drawing takes."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run(config: CheBench) -> int:
    """Measure and report. Returns the exit code: 130 if interrupted, with what was finished until then."""
    config = checked(config)
    rows: list[CheRow] = []
    with torch_threads(config.threads) as threads:
        complete = _measure(config, rows)
        settings = {**circumstances(config, threads), "complete": complete}
    if config.json is not None:
        write_json(config.json, settings, rows)
        print(f"wrote {config.json}", file=sys.stderr)
    if not complete:
        print("interrupted: only what was finished until then is reported", file=sys.stderr)
    print_table(make_table(rows, _title(config, threads)))
    return 0 if complete else INTERRUPTED


def checked(config: CheBench) -> CheBench:
    """With full names of tasks; refuses what cannot be meant before anything slow is imported."""
    if config.quick:
        config = replace(config, tasks=("even_pairs", "duplicate_string", "solve_equation"), lengths=(20,))
    check_counts(config, "batch", "width", "layers", "heads", "repeats", "warm_up", "threads")
    check_lengths(config.lengths)
    if config.width % config.heads:
        raise UsageError(f"--width {config.width} cannot be divided into {config.heads} heads of equal width")
    for name in ("tasks", "methods"):
        if not getattr(config, name):
            raise UsageError(f"--{name} needs at least one name")
    for method in config.methods:
        check_encoding("methods", method)
    if config.json is not None:
        check_writable_file(config.json, "--json")
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


def _measure(config: CheBench, rows: list[CheRow]) -> bool:
    """Fills ``rows``; whether all of them could be finished."""
    wanted = cases(config)
    try:
        with Progress(len(wanted)) as progress:
            for task, length, method in wanted:
                progress.begin(f"{task}, length {length}, {method}")
                rows.append(measure_case(config, task, length, method))
                progress.step()
    except KeyboardInterrupt:
        return False
    return True


def measure_case(config: CheBench, task: str, length: int, method: str) -> CheRow:
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
    return CheRow(
        task=task,
        length=length,
        tokens=total_length(settings, examples, length),
        method=method,
        draw_ms=1e3 * drawing,
        samples_per_second=config.batch / drawing,
        step_ms=1e3 * step,
        steps_per_second=1 / (drawing + step),
        draw_share=drawing / (drawing + step),
    )


def _median(call: Callable[[], object], repeats: int, warm_up: int) -> float:
    from dape.bench.timing import interleaved

    return statistics.median(seconds for _, seconds in interleaved({"": call}, repeats, warm_up=warm_up))


def make_table(rows: Sequence[CheRow], title: str) -> "Table":
    caption = "draw: share of a step, drawing included, that drawing examples takes"
    table = new_table(title, caption)
    for header in ("task", "length", "tokens", "method", "samples/s", "step ms", "steps/s", "draw"):
        table.add_column(header, justify="left" if header in ("task", "method") else "right", no_wrap=True)
    for row in rows:
        numbers = (f"{row.samples_per_second:,.0f}", f"{row.step_ms:.0f}", f"{row.steps_per_second:.2f}")
        place = (row.task, str(row.length), str(row.tokens), row.method)
        table.add_row(*place, *numbers, f"{100 * row.draw_share:.2f}%")
    return table


def _title(config: CheBench, threads: int) -> str:
    cores = f"{threads} thread{'s' if threads > 1 else ''}"
    return f"batch {config.batch}, {config.layers} layers, width {config.width}, {config.heads} heads, {cores}"
