"""``dape bench attention``: time and memory of the attention implementations. Imports torch only when it runs."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from dape.bench.estimate import dense_bytes
from dape.bench.options import WithTorch, check_choices, check_common, check_encoding, fields_for, memory_limit, unique
from dape.bench.records import (
    Column,
    Record,
    Results,
    count,
    interrupted_note,
    make_table,
    pass_name,
    text,
    threads_or_device,
)
from dape.bench.runner import NotMeasuredError, Once, Part, Plan, Timed, command
from dape.errors import UsageError
from dape.files import check_writable_file
from dape.machine import GB
from dape.positional.names import parse

if TYPE_CHECKING:
    from rich.table import Table

    from dape.bench.cases import Shape

Pass = Literal["forward", "forward_backward"]
Impl = Literal["fused", "triton", "blocked", "appendix", "sdpa", "static", "reference", "auto"]
Clock = Literal["wall", "cpu"]
Dtype = Literal["float32", "bfloat16", "float16", "float64"]

QUICK_LENGTH, QUICK_REPEATS = 512, 3


@dataclass(frozen=True, kw_only=True)
class AttentionBench(WithTorch):
    """Time and peak memory of attention, by implementation and length.

    This package has `fused` (compiled C++, CPU), `triton` (GPU), `blocked` and `reference`; `auto` chooses among them.
    `appendix` is dense DAPE as listed in its paper, `static` the dense Kerple bias alone, `sdpa` PyTorch's fused
    attention without positions. Each is first compared with the reference. Then they are timed in turns, and the
    median counts.
    """

    lengths: tuple[int, ...] = (512, 1024, 2048)
    """Sequence lengths."""
    impls: tuple[Impl, ...] = ("fused", "blocked", "appendix", "sdpa", "static", "reference")
    """Implementations to compare."""
    encoding: str = "dape-kerple"
    """Positional encoding, a name from `dape list`."""
    encodings: tuple[str, ...] = ()
    """Time these encodings instead (`all`: the whole catalogue), each by the implementation that `auto` chooses, in
    turns with `sdpa`. Replaces --impls and --encoding."""
    batch: int = 1
    """Sequences per call."""
    heads: int = 12
    """Attention heads."""
    head_dim: int = 64
    """Width of one head."""
    hidden: int = 32
    """Hidden units of DAPE's f; ignored by encodings without DAPE."""
    causal: bool = True
    """Hide the future (`--no-causal`: every token sees every other)."""
    dtype: Dtype = "float32"
    """Precision of queries, keys and values."""
    passes: tuple[Pass, ...] = ("forward", "forward_backward")
    """Forward without gradients, and forward followed by the gradients of q, k, v and all parameters."""
    repeats: int = 7
    """Timed repetitions of each call."""
    clock: Clock = "wall"
    """`cpu`: processor time, which other programs disturb less. Needs `--encodings` and `--threads 1`."""
    append: Path | None = None
    """Also append the results to this file, one line of JSON for each, with machine, versions and commit."""
    figure: Path | None = None
    """Also draw time and memory against length into this .png or .svg file."""
    memory: bool = True
    """Measure peak memory, each call in a process of its own (about 3 s each)."""
    quick: bool = False
    """A first impression: only lengths up to 512, three repetitions."""
    memory_limit_gb: float | None = None
    """Leave out what would need more memory than this; None means 70 % of what is available."""
    seed: int = 0
    """Seed of inputs and parameters."""


def run(config: AttentionBench, draw: Callable[[Results], None] | None = None) -> int:
    """Verify, measure, report. Returns the exit code: 1 if an implementation is wrong, 130 if interrupted.

    With ``config.figure``, ``draw`` must make the figure from the results, as :mod:`dape.cli.bench` does: this package
    may not import :mod:`dape.report`.
    """
    config = checked(config)
    if config.encodings:
        from dape.bench import whole_catalogue

        return whole_catalogue.run(config)
    if (config.figure is None) != (draw is None):
        raise ValueError("config.figure and draw come together: draw makes the figure from the results")
    impls, left_out = applicable(config)
    also = draw or (lambda results: None)
    return command(config, lambda threads: _plan(config, impls, left_out, threads), tables, also=also)


# Before the work -----------------------------------------------------------------------------------------------------


def checked(config: AttentionBench) -> AttentionBench:
    """The options without repeated values, and shortened by ``quick``. Raises UsageError on invalid ones."""
    for name, choices in (("impls", Impl), ("passes", Pass)):
        check_choices(name, getattr(config, name), get_args(choices))
    check_choices("dtype", (config.dtype,), get_args(Dtype))
    check_encoding("encoding", config.encoding)
    check_common(config, "batch", "heads", "head_dim", "hidden", "repeats", "threads")
    if config.clock == "cpu" and not (config.encodings and config.threads == 1 and config.device == "cpu"):
        raise UsageError(
            "`clock` cpu adds up the time of all threads: it needs `encodings`, `threads` 1 and `device` cpu"
        )
    if config.append is not None:
        check_writable_file(config.append, "`append`")
    if config.figure is not None:
        if config.encodings:
            raise UsageError("`figure` draws implementations, not `encodings`: leave one of them out")
        if config.figure.suffix not in (".png", ".svg"):
            raise UsageError(f"`figure` must end in .png or .svg, got {config.figure}")
        check_writable_file(config.figure, "`figure`")
    config = unique(config, "lengths", "impls", "passes")
    if not config.quick:
        return config
    lengths = tuple(length for length in config.lengths if length <= QUICK_LENGTH) or (QUICK_LENGTH,)
    return replace(config, lengths=lengths, repeats=min(config.repeats, QUICK_REPEATS))


def applicable(config: AttentionBench) -> tuple[list[str], dict[str, str]]:
    """The implementations that can compute this encoding, and why the others are left out."""
    knows = {"appendix": ("dape-kerple",), "static": ("dape-kerple", "kerple")}
    left_out = {
        impl: f"only knows {' and '.join(knows[impl])}, not {config.encoding}"
        for impl in config.impls
        if impl in knows and config.encoding not in knows[impl]
    }
    if len(left_out) == len(config.impls):
        raise UsageError(f"nothing to run: {'; '.join(f'{impl} {why}' for impl, why in left_out.items())}")
    return [impl for impl in config.impls if impl not in left_out], left_out


def _available(shape: "Shape", impls: list[str], left_out: dict[str, str]) -> list[str]:
    """The implementations that can run here. The others, with the reason, are added to ``left_out``."""
    from dape.bench.cases import why_not

    reasons = {impl: why_not(impl, shape) for impl in impls}
    left_out |= {impl: reason for impl, reason in reasons.items() if reason}
    if all(reasons.values()):
        raise UsageError(f"nothing to run: {'; '.join(left_out.values())}")
    return [impl for impl in impls if not reasons[impl]]


def too_large(config: AttentionBench, impl: str, length: int, pass_: Pass, limit: float) -> str:
    """Why a call is not started, or nothing."""
    sizes = {name: getattr(config, name) for name in ("encoding", "batch", "heads", "hidden", "dtype")}
    needed = dense_bytes(impl, pass_, **sizes, length=length)
    return "" if needed is None or needed <= limit else f"needs about {needed / GB:.3g} GB, not run"


# The work ------------------------------------------------------------------------------------------------------------


def _plan(config: AttentionBench, impls: list[str], left_out: dict[str, str], threads: int) -> Plan:
    from dape.bench.cases import Shape, disagreements

    shape = fields_for(Shape, config)
    impls = _available(shape, impls, left_out)
    wrong = [words for impl in impls for words in disagreements(shape, impl, config.passes)]
    if wrong:
        verdict = "dape bench: results differ from the reference in float64, so nothing was timed"
        raise NotMeasuredError("\n".join([*wrong, verdict]))
    limit = memory_limit(config.memory_limit_gb, config.device)
    notes = {
        (length, pass_, impl): too_large(config, impl, length, pass_, limit)
        for length in config.lengths
        for pass_ in config.passes
        for impl in impls
    }
    steps = sum(not note for note in notes.values()) * (config.repeats + config.memory)
    return Plan(parts=_parts(config, shape, notes, threads), steps=steps, settings={"left_out": left_out})


def _parts(
    config: AttentionBench, shape: "Shape", notes: Mapping[tuple[int, Any, str], str], threads: int
) -> Iterator[Part]:
    """For each length: all times, then memory."""
    from dape.bench.cases import add_memory

    for length in config.lengths:
        timed: list[Record] = []
        for pass_ in config.passes:
            why_not = {impl: note for (t, p, impl), note in notes.items() if (t, p) == (length, pass_)}
            yield _timed(config, shape, length, pass_, why_not, timed)
        what = f"{length} tokens, memory"
        for record in timed if config.memory else ():
            if record["ms"] is not None:
                yield Once(what=what, do=partial(add_memory, record, shape, record["impl"], threads))
                what = ""


def _timed(
    config: AttentionBench, shape: "Shape", length: int, pass_: Pass, why_not: dict[str, str], timed: list[Record]
) -> Timed:
    """All implementations in turns. Their records are also appended to ``timed``; those that do not fit memory have
    only a note."""
    from dape.bench import cases

    inputs = cases.make_inputs(shape, length)
    calls = {impl: cases.make_call(impl, inputs, pass_) for impl, note in why_not.items() if not note}

    def records(samples: Mapping[str, Sequence[float]]) -> list[Record]:
        found = [_record(config, impl, length, pass_, samples.get(impl, ()), note) for impl, note in why_not.items()]
        made = [record for record in found if record["ms"] is not None or record["note"]]
        timed.extend(made)
        return made

    return Timed(what=f"{length} tokens, {pass_name(pass_)}", calls=calls, repeats=config.repeats, records=records)


def _record(config: AttentionBench, impl: str, length: int, pass_: Pass, seconds: Sequence[float], note: str) -> Record:
    return {
        "impl": impl,
        "encoding": config.encoding,
        "length": length,
        "pass": pass_,
        "ms": 1000 * statistics.median(seconds) if seconds else None,
        "peak_mb": None,
        "note": interrupted_note(len(seconds), config.repeats) if seconds else note,
    }


# After the work ------------------------------------------------------------------------------------------------------

CAPTION = "vs sdpa: time relative to sdpa; speed-up: relative to appendix; peak MB: memory beyond the inputs"


def tables(results: Results) -> "Iterator[Table]":
    yield table_of(results)
    for impl, why in results.settings["left_out"].items():
        print(f"{impl} left out: it {why}")


def table_of(results: Results) -> "Table":
    """One line per record, with times relative to two baselines of the same length and pass."""
    times = {(r["length"], r["pass"], r["impl"]): r["ms"] for r in results.records}

    def against(impl: str, record: Record) -> float | None:
        return times.get((record["length"], record["pass"], impl))

    columns = [
        count("length"),
        Column("pass", lambda r: pass_name(r["pass"]), left=True),
        text("impl"),
        Column("ms", lambda r: _number(r["ms"])),
        Column("vs sdpa", lambda r: _ratio(r["ms"], against("sdpa", r))),
        Column("speed-up", lambda r: _ratio(against("appendix", r), r["ms"])),
        Column("peak MB", lambda r: _number(r["peak_mb"])),
    ]
    return make_table(title_of(results), CAPTION, results.records, columns, ("length", "pass"))


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _ratio(value: float | None, base: float | None) -> str:
    return "-" if not value or not base else f"{value / base:.2f}x"


def title_of(results: Results) -> str:
    settings = results.settings
    facts = ["{encoding}", "batch {batch}", "{heads} heads of {head_dim}"]
    facts += ["{hidden} hidden units"] if parse(settings["encoding"]).wrapper else []
    facts += ["{dtype}", "causal" if settings["causal"] else "bidirectional", threads_or_device(settings)]
    return ", ".join(facts).format(**settings)
