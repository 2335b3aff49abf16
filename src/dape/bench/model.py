"""``dape bench model``: the paper's time-cost table on this machine. Imports torch only when it runs.

:func:`measure` does the work without the command line, :func:`rows` turns its result into :class:`~dape.Row` objects.
"""

import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from dape.bench import runner
from dape.bench.model_plan import DEFAULT_DEPTHS, GPT2_VOCABULARY, PASSES, Planned, plan, shape_of
from dape.bench.model_records import Group, make_records, rows, table_of
from dape.bench.options import WithTorch, check_choices, check_common, fields_for, memory_limit, unique
from dape.bench.records import Results, pass_name, print_table, threads_or_device
from dape.bench.runner import Begins, Part, Plan, Progress, Telling, Timed, command, say
from dape.bench.train import TrainPass
from dape.config.load import preset_names
from dape.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["ModelBench", "measure", "rows", "run", "show"]

Precision = Literal["fp32", "bf16"]

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
DEFAULTS: dict[str, Any] = {
    "sizes": ("350m", "2.7b", "6.7b"),
    "encodings": ("rope", "t5", "alibi", "kerple", "fire", "dape-kerple"),
    "passes": PASSES,
    "rounds": 5,
}
QUICK: dict[str, Any] = {
    "sizes": ("350m",),
    "encodings": ("rope", "kerple", "dape-kerple"),
    "passes": ("forward", "step"),
    "rounds": 3,
    "minutes": 0.5,
}


@dataclass(frozen=True, kw_only=True)
class ModelBench(WithTorch):
    """Time of the paper's models by positional encoding, as in its time-cost table.

    Layers have the full width, and embedding and head the full size; only the depth is reduced. Times at two depths
    give the cost of a layer, and by linear extrapolation that of the whole model, marked with ~. All encodings and
    depths use one set of weights and take turns; ratios are taken within a round and their median counts. Cases that
    do not fit in memory are reported and left out.
    """

    sizes: tuple[str, ...] | None = None
    """Presets: tiny, small, 125m, 350m, 2.7b, 6.7b. None, here and below, means the paper's: 350m 2.7b 6.7b."""
    encodings: tuple[str, ...] | None = None
    """Names from `dape list`; None: rope t5 alibi kerple fire dape-kerple."""
    layers: tuple[int, ...] | None = None
    """Depths to time; None: 1 and 2, or 1 if 2 do not fit. The full depth is measured if it is among them."""
    lengths: tuple[int, ...] = (512,)
    """Tokens per sequence."""
    passes: tuple[TrainPass, ...] | None = None
    """Forward without gradients, forward and backward, and the whole step with AdamW; None: all three."""
    batch: int = 1
    """Sequences per step."""
    vocabulary: int | None = None
    """Number of token ids; None: 50304, and 257 for tiny and small. Fewer make the head cheaper than the paper's."""
    rounds: int | None = None
    """Timed repetitions of each case; None: 5."""
    warm_up: int = 1
    """Untimed repetitions before them."""
    minutes: float | None = None
    """Time for all cases, shared equally: a case begins no further round after its share. One round is always timed."""
    precision: Precision = "fp32"
    """bf16 is mixed precision: autocast around the model, weights in float32."""
    memory_limit_gb: float | None = None
    """Leave out what would need more memory than this; None means 70 % of what is available."""
    quick: bool = False
    """A first impression, about a minute: 350m, three encodings, two passes, three rounds if there is time."""
    seed: int = 0
    """Seed of weights and tokens."""


def run(config: ModelBench) -> int:
    """Measure and report. Returns the exit code: 1 if nothing fits the memory, 130 if interrupted."""
    config = checked(config)
    return command(config, lambda threads: _plan(config, say), tables, failed=lambda results: not results.records)


def measure(config: ModelBench, tell: Callable[[str], None] = say, progress: type[Progress] | None = None) -> Results:
    """Do the work of the command. Ctrl-C ends it early, with what was finished.

    ``tell`` is called with what is left out and, unless ``progress`` shows it, with what is being done.
    """
    config = checked(config)
    return runner.measure(config, lambda threads: _plan(config, tell), progress or Telling(tell))


# Before the work -----------------------------------------------------------------------------------------------------


def filled_in(config: ModelBench) -> ModelBench:
    """The options with defaults in place of None, without repeated values; passes and depths are sorted."""
    defaults = {**DEFAULTS, **QUICK} if config.quick else DEFAULTS
    config = replace(config, **{n: v for n, v in defaults.items() if getattr(config, n) is None})
    depths = tuple(sorted(set(config.layers))) if config.layers is not None else None
    config = replace(config, passes=tuple(sorted(set(config.passes or ()), key=_order)), layers=depths)
    return unique(config, "sizes", "encodings", "lengths")


def _order(pass_: str) -> int:
    return PASSES.index(pass_) if pass_ in PASSES else len(PASSES)


def checked(config: ModelBench) -> ModelBench:
    """The options, filled in. Raises UsageError on invalid ones, before anything slow is imported."""
    config = filled_in(config)
    check_choices("sizes", config.sizes or (), preset_names())
    check_choices("passes", config.passes or (), PASSES)
    check_choices("precision", (config.precision,), get_args(Precision))
    check_common(config, "batch", "vocabulary", "rounds", "warm_up", "threads", names="encodings")
    if config.minutes is not None and not config.minutes > 0:
        raise UsageError(f"`minutes` must be positive, got {config.minutes}")
    if config.layers is not None:
        _check_layers(config.layers, config.sizes or ())
    return config


def _check_layers(layers: tuple[int, ...], sizes: tuple[str, ...]) -> None:
    if not layers:
        raise UsageError(f"`layers` needs at least one depth, such as `layers` {' '.join(map(str, DEFAULT_DEPTHS))}")
    if min(layers) < 1:
        raise UsageError(f"`layers` must be at least 1, got {min(layers)}")
    for size in sizes:
        if max(layers) > shape_of(size).layers:
            raise UsageError(f"`layers` {max(layers)}: {size} has only {shape_of(size).layers}")


def _fitting(config: ModelBench) -> tuple[list[Planned], list[str]]:
    """The cases of each size that fit in memory, and a message for each that does not."""
    limit = memory_limit(config.memory_limit_gb, config.device)
    planned, skipped = [], []
    for size in config.sizes or ():
        fits, too_large = plan(
            size,
            shape_of(size, config.vocabulary),
            config.layers,
            [(length, pass_) for length in config.lengths for pass_ in config.passes or ()],
            encodings=config.encodings or (),
            batch=config.batch,
            half=config.precision == "bf16",
            limit=limit,
        )
        planned.append(fits)
        skipped += too_large
    return planned, skipped


# The work ------------------------------------------------------------------------------------------------------------


def _plan(config: ModelBench, tell: Callable[[str], None]) -> Plan:
    planned, skipped = _fitting(config)
    for words in skipped:
        tell(words)
    assert config.rounds and config.encodings
    return Plan(
        parts=_parts(config, planned),
        steps=config.rounds * len(config.encodings) * sum(len(p.depths) * len(p.cases) for p in planned),
        settings={
            "dtype": DTYPES[config.precision],
            "models": {p.size: {**asdict(p.shape), "layers_measured": list(p.depths)} for p in planned},
            "skipped": skipped,
        },
    )


def _parts(config: ModelBench, planned: list[Planned]) -> Iterator[Part]:
    """For each size and pass, models take turns. The time that is left is shared equally by the remaining cases."""
    end = math.inf if config.minutes is None else time.monotonic() + 60 * config.minutes
    left = sum(len(size.cases) for size in planned)
    for size in planned:
        if size.cases:
            yield Begins(f"{size.size}: initial weights")
        for part in _parts_of(config, size):
            now = time.monotonic()
            yield replace(part, deadline=now + (end - now) / left)
            left -= 1
        gc.collect()  # frees gigabytes before the next size allocates its own


def _parts_of(config: ModelBench, planned: Planned) -> Iterator[Timed]:
    from dape.bench.model_cases import make_trainees, make_trunk
    from dape.bench.train_cases import Workload

    assert config.rounds and config.encodings
    shape, lengths = planned.shape, list(dict.fromkeys(length for length, _ in planned.cases))
    if not lengths:
        return
    of_shape = {name: getattr(shape, name) for name in ("width", "heads", "vocabulary")}
    dtype, deepest = DTYPES[config.precision], max(planned.depths)
    workload = fields_for(Workload, config, **of_shape, layers=deepest, precision=dtype, compile=False)
    trunk = make_trunk(workload, lengths[0])
    for length in lengths:
        # Made for each length, so that the optimizer's state of the previous length is freed.
        trainees = make_trainees(trunk, config.encodings, planned.depths, workload, length)
        as_published = config.batch == 1 and length == 512 and shape.vocabulary == GPT2_VOCABULARY
        for _, pass_ in (case for case in planned.cases if case[0] == length):
            group = Group(
                size=planned.size,
                layers=shape.layers,
                length=length,
                pass_=pass_,
                rounds=config.rounds,
                as_published=as_published,
            )
            yield Timed(
                what=f"{planned.size}, {length} tokens, {pass_name(pass_)}",
                calls={case: getattr(trainee, pass_) for case, trainee in trainees.items()},
                repeats=config.rounds,
                warm_up=config.warm_up,
                records=partial(make_records, group),
            )


# After the work ------------------------------------------------------------------------------------------------------


def tables(results: Results) -> "Iterator[Table]":
    """A table per size."""
    for size in dict.fromkeys(record["size"] for record in results.records):
        title = _title(size, results.settings)
        yield table_of([record for record in results.records if record["size"] == size], title)


def show(results: Results) -> None:
    for table in tables(results):
        print_table(table)


def _title(size: str, settings: Any) -> str:
    model = settings["models"][size]
    facts = [
        f"{size}: width {model['width']}",
        f"{model['heads']} heads",
        f"vocabulary {model['vocabulary']}",
        f"batch {settings['batch']}",
        *([f"{settings['lengths'][0]} tokens"] if len(settings["lengths"]) == 1 else []),
        settings["dtype"],
        threads_or_device(settings),
    ]
    measured = " and ".join(map(str, model["layers_measured"]))
    return f"{', '.join(facts)}; {measured} of {model['layers']} layers measured"
