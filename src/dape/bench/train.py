"""``dape bench train``: tokens per second in training, by model. Imports torch only when it runs."""

import contextlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from dape.bench.options import WithTorch, check_choices, check_common, fields_for, unique
from dape.bench.records import (
    Column,
    Record,
    Results,
    Spread,
    count,
    interrupted_note,
    make_table,
    paired,
    pass_name,
    spread,
    text,
    threads_or_device,
    with_range,
)
from dape.bench.runner import Begins, NotMeasuredError, Part, Plan, Timed, command
from dape.errors import UsageError, check_heads
from dape.machine import GB, available_bytes
from dape.positional.catalogue import find
from dape.positional.names import base_of

if TYPE_CHECKING:
    from rich.table import Table

    from dape.bench.train_cases import Workload

PLAIN_GPT = "plain-gpt"
TrainPass = Literal["step", "forward_backward", "forward"]
Preset = Literal["tiny", "350m-slice"]
Precision = Literal["float32", "bfloat16"]

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": dict(layers=4, width=128, heads=8, vocabulary=257, batch=32, lengths=(64, 128)),
    "350m-slice": dict(layers=2, width=1024, heads=16, vocabulary=50304, batch=1, lengths=(512,)),
}


@dataclass(frozen=True, kw_only=True)
class TrainBench(WithTorch):
    """Training speed in tokens per second, by positional encoding and length.

    A step is forward, cross-entropy, backward, clipping of the gradients, AdamW and the projection of constrained
    parameters, on random tokens. All models take turns in one process. Ratios are taken within a round, where other
    load on the machine affects both models, and their median counts. `plain-gpt` is a minimal GPT with rotary positions
    on PyTorch's own attention, without this package.
    """

    preset: Preset = "tiny"
    """Shape of the model: `tiny` learns on a CPU, `350m-slice` is two layers of the paper's 350M model."""
    encodings: tuple[str, ...] = (PLAIN_GPT, "rope", "kerple", "dape-kerple")
    """Models to compare: positional encodings from `dape list`, and `plain-gpt`."""
    lengths: tuple[int, ...] | None = None
    """Tokens per sequence; None, here and below, means as in the preset."""
    layers: int | None = None
    """Transformer blocks."""
    width: int | None = None
    """Width of the hidden states."""
    heads: int | None = None
    """Attention heads."""
    vocabulary: int | None = None
    """Number of token ids."""
    batch: int | None = None
    """Sequences per step."""
    passes: tuple[TrainPass, ...] = ("step",)
    """The whole step, forward and backward without the update, or the loss without gradients."""
    precision: Precision = "float32"
    """bfloat16 is mixed precision: autocast around the model, weights in float32."""
    compile: bool = False
    """Compile the models first (torch.compile, minutes)."""
    repeats: int = 20
    """Timed steps of each model."""
    warm_up: int = 3
    """Untimed steps of each model before them."""
    seed: int = 0
    """Seed of weights and tokens."""


def run(config: TrainBench) -> int:
    """Verify, measure, report. Returns the exit code: 1 if rope and plain-gpt disagree, 130 if interrupted."""
    config = filled_in(config)
    check(config)
    return command(config, lambda threads: _plan(config), tables)


# Before the work -----------------------------------------------------------------------------------------------------


def filled_in(config: TrainBench) -> TrainBench:
    """The options, with those of the preset in place of None, and without repeated values."""
    check_choices("preset", (config.preset,), get_args(Preset))
    shape = {n: v for n, v in PRESETS[config.preset].items() if getattr(config, n) is None}
    return unique(replace(config, **shape), "encodings", "lengths", "passes")


def check(config: TrainBench) -> None:
    """Raise UsageError on invalid options, before anything slow is imported."""
    counts = ("layers", "width", "heads", "vocabulary", "batch", "repeats", "warm_up", "threads")
    check_common(config, *counts, names="encodings", besides=PLAIN_GPT)
    check_choices("passes", config.passes, get_args(TrainPass))
    check_choices("precision", (config.precision,), get_args(Precision))
    _check_heads(config)
    _check_memory(config)


def _check_heads(config: TrainBench) -> None:
    assert config.width is not None and config.heads is not None
    check_heads(config.width, config.heads)
    head_dim = config.width // config.heads
    rotary = [n for n in config.encodings if n == PLAIN_GPT or "rotate" in find(n).hook]
    if head_dim % 2 and rotary:
        raise UsageError(f"{rotary[0]} rotates pairs of channels: `width` / `heads` must be even, got {head_dim}")


def _check_memory(config: TrainBench) -> None:
    """Check a lower bound of the memory of all models: weights, AdamW's two moments, gradients, and logits three
    times."""
    if config.device != "cpu":
        return
    assert config.layers and config.width and config.vocabulary and config.batch and config.lengths
    weights = 12 * config.layers * config.width**2 + 2 * config.vocabulary * config.width
    logits = config.batch * max(config.lengths) * config.vocabulary
    needed = 4 * (len(config.encodings) * 3 * weights + weights + 3 * logits)
    if needed > available_bytes():
        raise UsageError(
            f"{len(config.encodings)} models together need at least {needed / GB:.3g} GB, but only "
            f"{available_bytes() / GB:.3g} GB are available: give fewer `encodings` or fewer `layers`"
        )


# The work ------------------------------------------------------------------------------------------------------------


def _plan(config: TrainBench) -> Plan:
    from dape.bench.train_cases import Workload, disagreements

    workload = fields_for(Workload, config)
    wrong = disagreements(workload) if PLAIN_GPT in config.encodings else []
    if wrong:
        verdict = f"dape bench: rope and {PLAIN_GPT} are not the same function, so nothing was timed"
        raise NotMeasuredError("\n".join([*wrong, verdict]))
    steps = len(config.lengths or ()) * len(config.passes) * len(config.encodings) * config.repeats
    return Plan(parts=_parts(config, workload), steps=steps)


def _parts(config: TrainBench, workload: "Workload") -> Iterator[Part]:
    """For each length and pass, models take turns."""
    from dape.bench.train_cases import make_trainee, room_for_graphs

    for length in config.lengths or ():
        # A model has a graph with gradients and one without, and each may consist of several pieces.
        graphs = room_for_graphs(4 * len(config.encodings)) if config.compile else contextlib.nullcontext()
        with graphs:
            yield Begins(f"{length} tokens, initial weights")
            trainees = {model: make_trainee(model, workload, length) for model in config.encodings}
            sizes = {model: trainee.size for model, trainee in trainees.items()}
            for pass_ in config.passes:
                yield Timed(
                    what=f"{length} tokens, {pass_name(pass_)}",
                    calls={model: getattr(trainee, pass_) for model, trainee in trainees.items()},
                    repeats=config.repeats,
                    warm_up=config.warm_up,
                    records=partial(make_records, config, length, pass_, sizes),
                )


def make_records(
    config: TrainBench,
    length: int,
    pass_: TrainPass,
    parameters: Mapping[str, int],
    samples: Mapping[str, Sequence[float]],
) -> list[Record]:
    """A record for each model that was timed. ``samples`` holds seconds; the n-th of every model are from round n."""
    timed = {model: seconds for model, seconds in samples.items() if seconds}
    return [
        {
            "model": model,  # an encoding, or plain-gpt
            "length": length,
            "pass": pass_,
            **spread("ms", Spread.of([1000 * s for s in seconds])),
            # The least disturbed step, of use where other load on the machine makes the quartiles wide.
            "fastest_ms": 1000 * min(seconds),
            "tokens_per_second": (config.batch or 0) * length / statistics.median(seconds),
            **spread("speed_vs_plain_gpt", paired(timed.get(PLAIN_GPT), seconds)),
            "base": base if (base := base_of(model)) in timed else None,  # X for dape-X
            **spread("time_vs_base", paired(seconds, timed.get(base or ""))),
            "parameters": parameters[model],
            "note": interrupted_note(len(seconds), config.repeats),
        }
        for model, seconds in timed.items()
    ]


# After the work ------------------------------------------------------------------------------------------------------

CAPTION = (
    "(...): interquartile range. speed: tokens/s relative to plain-gpt, more is better. "
    "time: dape-X relative to X, less is better. Both are medians of ratios within a round."
)


def tables(results: Results) -> "Iterator[Table]":
    yield table_of(results.records, _title(results.settings))


def table_of(records: Sequence[Record], title: str) -> "Table":
    """The table. A single pass is named in the title and gets no column."""
    columns = [
        count("length"),
        text("model", wraps=True),
        Column("ms", lambda r: with_range(r, "ms", digits=0 if r["ms"] >= 1000 else 1)),
        Column("tokens/s", lambda r: f"{r['tokens_per_second']:.0f}"),
        Column("speed", lambda r: with_range(r, "speed_vs_plain_gpt")),
        Column("time", lambda r: with_range(r, "time_vs_base")),
        Column("params", lambda r: f"{r['parameters'] / 1e6:.{2 if r['parameters'] < 100e6 else 0}f}M"),
    ]
    if len({record["pass"] for record in records}) > 1:
        columns.append(Column("pass", lambda r: pass_name(r["pass"]), left=True, wraps=True))
    return make_table(title, CAPTION, records, columns, ("length", "pass"), narrow=True)


def _title(settings: Mapping[str, Any]) -> str:
    facts = [pass_name(p) for p in settings["passes"] if len(settings["passes"]) == 1]
    facts += ["{layers} layers", "width {width}", "{heads} heads", "vocabulary {vocabulary}", "batch {batch}"]
    facts += ["{precision}", threads_or_device(settings)] + ["compiled"] * settings["compile"]
    return ", ".join(facts).format(**settings)
