"""``dape bench train``: tokens per second in training, side by side. Imports torch only when it runs."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from dape.bench.options import (
    INTERRUPTED,
    check_choices,
    check_counts,
    check_device,
    check_encoding,
    check_lengths,
    circumstances,
    torch_threads,
)
from dape.bench.progress import Progress
from dape.bench.records import print_table, write_json
from dape.bench.train_records import PLAIN_GPT, TrainPass, TrainRow, make_table
from dape.errors import UsageError
from dape.files import check_writable_file
from dape.machine import GB, available_bytes
from dape.positional.catalogue import find

if TYPE_CHECKING:
    from dape.bench.train_cases import Workload

Preset = Literal["tiny", "350m-slice"]
Precision = Literal["float32", "bfloat16"]

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": dict(layers=4, width=128, heads=8, vocabulary=257, batch=32, lengths=(64, 128)),
    "350m-slice": dict(layers=2, width=1024, heads=16, vocabulary=50304, batch=1, lengths=(512,)),
}


@dataclass(frozen=True, kw_only=True)
class TrainBench:
    """Training speed in tokens per second, by positional encoding and length.

    A step is forward, cross-entropy, backward, clipping of the gradients, AdamW and the projection of constrained
    parameters, on random tokens. All models live in one process and take turns; ratios are taken within a round and
    their median counts, so that other work on the machine hits both sides alike. `plain-gpt` is a minimal GPT with
    rotary positions on PyTorch's own attention: what the machine can do without this package.
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
    """The whole step, forward and backward alone, or the loss without gradients."""
    precision: Precision = "float32"
    """bfloat16 is mixed precision: autocast around the model, weights in float32."""
    compile: bool = False
    """Compile the models first (torch.compile, minutes)."""
    repeats: int = 20
    """Timed steps of each model."""
    warm_up: int = 3
    """Untimed steps of each model before them."""
    threads: int | None = None
    """Threads of torch; None leaves the choice to torch."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, cuda:1, ..."""
    json: Path | None = None
    """Also write the results to this file."""
    seed: int = 0
    """Seed of weights and tokens."""


def run(config: TrainBench) -> int:
    """Verify, measure, report. Returns the exit code: 1 if rope and plain-gpt disagree, 130 if interrupted."""
    config = filled_in(config)
    check(config)
    with torch_threads(config.threads) as threads:
        check_device(config.device)
        workload = _workload(config)
        if not _verified(config, workload):
            return 1
        rows, complete = _measure(config, workload)
        settings = {**circumstances(config, threads), "complete": complete}
    _report(config, rows, settings)
    return 0 if complete else INTERRUPTED


# Before the work -----------------------------------------------------------------------------------------------------


def filled_in(config: TrainBench) -> TrainBench:
    """What was not given comes from the preset; models and lengths count once."""
    check_choices("preset", (config.preset,), get_args(Preset))
    shape = {n: v for n, v in PRESETS[config.preset].items() if getattr(config, n) is None}
    config = replace(config, **shape)
    once = {n: tuple(dict.fromkeys(getattr(config, n))) for n in ("encodings", "lengths", "passes")}
    return replace(config, **once)


def check(config: TrainBench) -> None:
    """Refuse what cannot be meant, before anything slow is imported or started."""
    check_counts(config, "layers", "width", "heads", "vocabulary", "batch", "repeats", "warm_up", "threads")
    check_choices("passes", config.passes, get_args(TrainPass))
    check_choices("precision", (config.precision,), get_args(Precision))
    check_lengths(config.lengths or ())
    if not config.encodings:
        raise UsageError(f"--encodings needs at least one name from `dape list`, or {PLAIN_GPT}")
    for name in config.encodings:
        if name != PLAIN_GPT:
            check_encoding("encodings", name)
    _check_heads(config)
    if config.json is not None:
        check_writable_file(config.json, "--json")
    _check_memory(config)


def _check_heads(config: TrainBench) -> None:
    assert config.width is not None and config.heads is not None
    if config.width % config.heads:
        raise UsageError(f"--width {config.width} cannot be divided into {config.heads} heads of equal width")
    head_dim = config.width // config.heads
    turning = [n for n in config.encodings if n == PLAIN_GPT or "rotate" in find(n).hook]
    if head_dim % 2 and turning:
        raise UsageError(f"{turning[0]} turns pairs of channels: --width / --heads must be even, got {head_dim}")


def _check_memory(config: TrainBench) -> None:
    """All models are held at once. A lower bound: weights, gradients, AdamW's two moments, and logits thrice."""
    if config.device != "cpu":
        return
    assert config.layers and config.width and config.vocabulary and config.batch and config.lengths
    weights = 12 * config.layers * config.width**2 + 2 * config.vocabulary * config.width
    logits = config.batch * max(config.lengths) * config.vocabulary
    needed = 4 * (len(config.encodings) * 3 * weights + weights + 3 * logits)
    if needed > available_bytes():
        raise UsageError(
            f"{len(config.encodings)} models side by side need at least {needed / GB:.3g} GB, "
            f"{available_bytes() / GB:.3g} GB are available: name fewer --encodings, or fewer --layers"
        )


def _workload(config: TrainBench) -> "Workload":
    from dape.bench.train_cases import Workload

    given = asdict(config)
    return Workload(**{name: given[name] for name in Workload.__dataclass_fields__})


def _verified(config: TrainBench, workload: "Workload") -> bool:
    """The yardstick must compute the same as what it is held against."""
    from dape.bench.train_cases import disagreements

    wrong = disagreements(workload) if PLAIN_GPT in config.encodings else []
    for text in wrong:
        print(text, file=sys.stderr)
    if wrong:
        print(f"dape bench: rope and {PLAIN_GPT} are not the same function, so nothing was timed", file=sys.stderr)
    return not wrong


def _measure(config: TrainBench, workload: "Workload") -> tuple[list[TrainRow], bool]:
    """The rows, and whether all of them could be finished."""
    from dape.bench.train_measure import Session

    session = Session(
        workload=workload,
        models=list(config.encodings),
        lengths=list(config.lengths or ()),
        passes=list(config.passes),
        repeats=config.repeats,
        warm_up=config.warm_up,
    )
    try:
        with Progress(session.steps()) as progress:
            session.run(progress)
    except KeyboardInterrupt:
        return session.rows, False
    return session.rows, True


# After the work ------------------------------------------------------------------------------------------------------


def _report(config: TrainBench, rows: Sequence[TrainRow], settings: dict[str, Any]) -> None:
    # The file first: whoever reads the table through a pipe may stop early.
    if config.json is not None:
        write_json(config.json, settings, rows)
        print(f"wrote {config.json}", file=sys.stderr)
    if not settings["complete"]:
        print("interrupted: only what was finished until then is reported", file=sys.stderr)
    print_table(make_table(rows, _title(settings)))


def _title(settings: dict[str, Any]) -> str:
    facts = [p.replace("_", "+") for p in settings["passes"] if len(settings["passes"]) == 1]
    facts += ["{layers} layers", "width {width}", "{heads} heads", "vocabulary {vocabulary}", "batch {batch}"]
    threads = "1 thread" if settings["threads"] == 1 else "{threads} threads"
    facts += ["{precision}", threads if settings["device"] == "cpu" else "{device}"]
    facts += ["compiled"] if settings["compile"] else []
    return ", ".join(facts).format(**settings)
