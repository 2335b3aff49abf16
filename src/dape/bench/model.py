"""``dape bench model``: the paper's time-cost table on this machine. Imports torch only when it runs.

:func:`measure` does the work without the command line, :func:`rows` turns its result into rows of the one type.
"""

import contextlib
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from dape.bench.model_plan import DEFAULT_DEPTHS, Planned, plan, shape_of
from dape.bench.model_records import PASSES, ModelResult, ModelRow, make_table, rows
from dape.bench.options import (
    INTERRUPTED,
    check_choices,
    check_counts,
    check_device,
    check_encoding,
    check_lengths,
    check_memory_limit,
    circumstances,
    memory_limit,
    torch_threads,
)
from dape.bench.progress import Progress
from dape.bench.records import print_table, write_json
from dape.bench.train_records import TrainPass
from dape.config.load import preset_names
from dape.errors import UsageError
from dape.files import check_writable_file

__all__ = ["ModelBench", "ModelResult", "measure", "rows", "run", "show"]

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
class ModelBench:
    """Time of the paper's models by positional encoding, as in its time-cost table.

    Real layers at full width, with the whole embedding and head; only the depth is cut. Times at two depths give the
    cost of a layer, and that of the whole model by linear continuation, marked with ~. All encodings and depths use
    one set of weights, and take turns; ratios are taken within a round and their median counts. What does not fit the
    memory is named and left out.
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
    """Forward without gradients, forward and backward, the whole step with AdamW; None: all three."""
    batch: int = 1
    """Sequences per step."""
    vocabulary: int | None = None
    """Number of token ids; None: 50304, and 257 for tiny and small. Fewer make the head cheaper than the paper's."""
    rounds: int | None = None
    """Timed repetitions of each case; None: 5."""
    warm_up: int = 1
    """Untimed repetitions before them."""
    minutes: float | None = None
    """Begin no further round of a case when its share of this time is over; one round is always timed."""
    precision: Precision = "fp32"
    """bf16 is mixed precision: autocast around the model, weights in float32."""
    threads: int | None = None
    """Threads of torch; None leaves the choice to torch."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, cuda:1, ..."""
    memory_limit_gb: float | None = None
    """Leave out what would need more memory than this; None means 70 % of what is available."""
    json: Path | None = None
    """Also write the results to this file."""
    quick: bool = False
    """A first impression, about a minute: 350m, three encodings, two passes, three rounds if there is time."""
    seed: int = 0
    """Seed of weights and tokens."""


def run(config: ModelBench) -> int:
    """Measure and report. Returns the exit code: 1 if nothing fits the memory, 130 if interrupted."""
    result = measure(config, progress=Progress)
    if config.json is not None:  # first: whoever reads the table through a pipe may stop early
        write_json(config.json, dict(result.settings), result.rows)
        _say(f"wrote {config.json}")
    if not result.complete:
        _say("interrupted: only what was finished until then is reported")
    show(result)
    if not result.complete:
        return INTERRUPTED
    return 0 if result.rows else 1


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def measure(
    config: ModelBench,
    tell: Callable[[str], None] = _say,
    progress: type[Progress] | None = None,
) -> ModelResult:
    """The work of the command. ``tell`` hears what is left out and, unless there is a progress bar, what is going on.

    An interruption (Ctrl-C) ends it early with what was finished."""
    config = filled_in(config)
    check(config)
    with torch_threads(config.threads) as threads:
        check_device(config.device)
        planned, skipped = _plan(config)
        for text in skipped:
            tell(text)
        found, complete = _measure(config, planned, progress or (lambda steps: _Telling(tell)))
        settings = {
            **circumstances(config, threads),
            "dtype": DTYPES[config.precision],
            "models": {p.size: {**asdict(p.shape), "layers_measured": list(p.depths)} for p in planned},
            "skipped": skipped,
            "complete": complete,
        }
    return ModelResult(rows=tuple(found), skipped=tuple(skipped), settings=settings, complete=complete)


# Before the work -----------------------------------------------------------------------------------------------------


def filled_in(config: ModelBench) -> ModelBench:
    """With defaults in place of None; names count once, passes come in their order, depths in theirs."""
    defaults = {**DEFAULTS, **QUICK} if config.quick else DEFAULTS
    config = replace(config, **{n: v for n, v in defaults.items() if getattr(config, n) is None})
    once = {n: tuple(dict.fromkeys(getattr(config, n))) for n in ("sizes", "encodings", "lengths")}
    depths = tuple(sorted(set(config.layers))) if config.layers is not None else None
    return replace(config, **once, passes=tuple(sorted(set(config.passes or ()), key=_order)), layers=depths)


def _order(pass_: str) -> int:
    return PASSES.index(pass_) if pass_ in PASSES else len(PASSES)


def check(config: ModelBench) -> None:
    """Refuse what cannot be meant, before anything slow is imported or started."""
    check_choices("sizes", config.sizes or (), preset_names())
    check_choices("passes", config.passes or (), PASSES)
    check_choices("precision", (config.precision,), get_args(Precision))
    check_counts(config, "batch", "vocabulary", "rounds", "warm_up", "threads")
    check_lengths(config.lengths)
    if not config.encodings:
        raise UsageError("--encodings needs at least one name from `dape list`")
    for name in config.encodings:
        check_encoding("encodings", name)
    if config.minutes is not None and not config.minutes > 0:
        raise UsageError(f"--minutes must be positive, got {config.minutes}")
    check_memory_limit(config.memory_limit_gb)
    if config.json is not None:
        check_writable_file(config.json, "--json")
    if config.layers is not None:
        _check_layers(config.layers, config.sizes or ())


def _check_layers(layers: tuple[int, ...], sizes: tuple[str, ...]) -> None:
    if not layers:
        raise UsageError(f"--layers needs at least one depth, such as --layers {' '.join(map(str, DEFAULT_DEPTHS))}")
    if min(layers) < 1:
        raise UsageError(f"--layers must be at least 1, got {min(layers)}")
    for size in sizes:
        if max(layers) > shape_of(size).layers:
            raise UsageError(f"--layers {max(layers)}: {size} has only {shape_of(size).layers}")


def _plan(config: ModelBench) -> tuple[list[Planned], list[str]]:
    """What fits of each size, and in words what does not."""
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


class _Telling(contextlib.nullcontext):
    """In place of a progress bar: what begins is told, steps are not."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(self)
        self.begin = tell

    def step(self) -> None:
        pass


def _measure(config: ModelBench, planned: list[Planned], progress: Callable[[int], Any]) -> tuple[list[ModelRow], bool]:
    """The rows, and whether all of them could be finished."""
    from dape.bench.model_measure import Session

    assert config.encodings and config.rounds
    session = Session(
        planned=planned,
        encodings=config.encodings,
        batch=config.batch,
        precision=DTYPES[config.precision],
        device=config.device,
        seed=config.seed,
        rounds=config.rounds,
        warm_up=config.warm_up,
        minutes=config.minutes,
    )
    try:
        with progress(session.steps()) as watch:
            session.run(watch)
    except KeyboardInterrupt:
        return session.rows, False
    return session.rows, True


# After the work ------------------------------------------------------------------------------------------------------


def show(result: ModelResult) -> None:
    """One table per size."""
    for size in dict.fromkeys(row.size for row in result.rows):
        print_table(make_table([row for row in result.rows if row.size == size], _title(size, result.settings)))


def _title(size: str, settings: Any) -> str:
    model = settings["models"][size]
    threads = "1 thread" if settings["threads"] == 1 else f"{settings['threads']} threads"
    facts = [
        f"{size}: width {model['width']}",
        f"{model['heads']} heads",
        f"vocabulary {model['vocabulary']}",
        f"batch {settings['batch']}",
        *([f"{settings['lengths'][0]} tokens"] if len(settings["lengths"]) == 1 else []),
        settings["dtype"],
        threads if settings["device"] == "cpu" else settings["device"],
    ]
    measured = " and ".join(map(str, model["layers_measured"]))
    return f"{', '.join(facts)}; {measured} of {model['layers']} layers measured"
