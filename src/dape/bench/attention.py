"""``dape bench attention``: time and memory of the attention implementations. Imports torch only when it runs."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

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
from dape.bench.records import Pass, Row, make_table, print_table, write_json
from dape.errors import UsageError
from dape.files import check_writable_file
from dape.positional.names import parse

if TYPE_CHECKING:
    from dape.bench.cases import Shape

Impl = Literal["fused", "triton", "blocked", "appendix", "sdpa", "static", "reference", "auto"]
Dtype = Literal["float32", "bfloat16", "float16", "float64"]

QUICK_LENGTH, QUICK_REPEATS = 512, 3


@dataclass(frozen=True, kw_only=True)
class AttentionBench:
    """Time and peak memory of attention, by implementation and length.

    Implementations: `fused` (compiled C++, CPU), `triton` (GPU), `blocked` and `reference` are this package's (`auto`
    its choice among them); `appendix` is DAPE written out densely as in the paper, `static` the dense Kerple bias
    alone, and `sdpa` PyTorch's fused attention without positions. Each is first compared with the reference, then all
    take turns and the median counts.
    """

    lengths: tuple[int, ...] = (512, 1024, 2048)
    """Sequence lengths."""
    impls: tuple[Impl, ...] = ("fused", "blocked", "appendix", "sdpa", "static", "reference")
    """Implementations to compare."""
    encoding: str = "dape-kerple"
    """Positional encoding, a name from `dape list`."""
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
    threads: int | None = None
    """Threads of torch; None leaves the choice to torch."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, cuda:1, ..."""
    json: Path | None = None
    """Also write the results to this file."""
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


def run(config: AttentionBench) -> int:
    """Verify, measure, report. Returns the exit code: 1 if an implementation is wrong, 130 if interrupted."""
    check(config)
    config = _shortened(config) if config.quick else config
    impls, left_out = applicable(config)
    with torch_threads(config.threads) as threads:
        check_device(config.device)
        shape = _shape(config)
        impls = _available(shape, impls, left_out)
        if not _verified(shape, impls, config.passes):
            return 1
        rows, complete = _measure(config, shape, impls, threads)
        settings = {**circumstances(config, threads), "left_out": left_out, "complete": complete}
    _report(config, rows, settings)
    return 0 if complete else INTERRUPTED


# Before the work -----------------------------------------------------------------------------------------------------


def check(config: AttentionBench) -> None:
    """Refuse what cannot be meant, before anything slow is imported or started."""
    check_counts(config, "batch", "heads", "head_dim", "hidden", "repeats", "threads")
    for name, choices in (("impls", Impl), ("passes", Pass)):
        check_choices(name, getattr(config, name), get_args(choices))
    check_choices("dtype", (config.dtype,), get_args(Dtype))
    check_lengths(config.lengths)
    check_memory_limit(config.memory_limit_gb)
    check_encoding("encoding", config.encoding)
    if config.json is not None:
        check_writable_file(config.json, "--json")
    if config.figure is not None:
        if config.figure.suffix not in (".png", ".svg"):
            raise UsageError(f"--figure must end in .png or .svg, got {config.figure}")
        check_writable_file(config.figure, "--figure")


def _shortened(config: AttentionBench) -> AttentionBench:
    lengths = tuple(length for length in config.lengths if length <= QUICK_LENGTH) or (QUICK_LENGTH,)
    return replace(config, lengths=lengths, repeats=min(config.repeats, QUICK_REPEATS))


def applicable(config: AttentionBench) -> tuple[list[str], dict[str, str]]:
    """The implementations that can compute this encoding, and why the others are left out."""
    knows = {"appendix": ("dape-kerple",), "static": ("dape-kerple", "kerple")}
    impls = list(dict.fromkeys(config.impls))
    left_out = {
        impl: f"only knows {' and '.join(knows[impl])}, not {config.encoding}"
        for impl in impls
        if impl in knows and config.encoding not in knows[impl]
    }
    if len(left_out) == len(impls):
        raise UsageError(f"nothing to run: {'; '.join(f'{impl} {why}' for impl, why in left_out.items())}")
    return [impl for impl in impls if impl not in left_out], left_out


def _available(shape: "Shape", impls: list[str], left_out: dict[str, str]) -> list[str]:
    """Without those that this machine or this precision does not allow, which are added to ``left_out``."""
    from dape.bench.cases import why_not

    reasons = {impl: why_not(impl, shape) for impl in impls}
    left_out |= {impl: reason for impl, reason in reasons.items() if reason}
    if all(reasons.values()):
        raise UsageError(f"nothing to run: {'; '.join(left_out.values())}")
    return [impl for impl in impls if not reasons[impl]]


def _shape(config: AttentionBench) -> "Shape":
    from dape.bench.cases import Shape

    return Shape(
        encoding=config.encoding,
        batch=config.batch,
        heads=config.heads,
        head_dim=config.head_dim,
        hidden=config.hidden,
        causal=config.causal,
        dtype=config.dtype,
        device=config.device,
        seed=config.seed,
    )


def _verified(shape: "Shape", impls: Sequence[str], passes: tuple[Pass, ...]) -> bool:
    """Only what is right gets timed."""
    from dape.bench.cases import disagreements

    wrong = [text for impl in impls for text in disagreements(shape, impl, passes)]
    for text in wrong:
        print(text, file=sys.stderr)
    if wrong:
        print("dape bench: results differ from the reference in float64, so nothing was timed", file=sys.stderr)
    return not wrong


def _measure(config: AttentionBench, shape: "Shape", impls: list[str], threads: int) -> tuple[list[Row], bool]:
    """The rows, and whether all of them could be finished."""
    from dape.bench.measure import Session

    session = Session(
        shape=shape,
        impls=impls,
        passes=list(dict.fromkeys(config.passes)),
        lengths=list(dict.fromkeys(config.lengths)),
        repeats=config.repeats,
        threads=threads,
        memory=config.memory,
        limit=memory_limit(config.memory_limit_gb, config.device),
    )
    try:
        with Progress(session.steps()) as progress:
            session.run(progress)
    except KeyboardInterrupt:
        return session.finished(), False
    return session.finished(), True


# After the work ------------------------------------------------------------------------------------------------------


def _report(config: AttentionBench, rows: Sequence[Row], settings: dict[str, Any]) -> None:
    # The file first: whoever reads the table through a pipe may stop early.
    if config.json is not None:
        write_json(config.json, settings, rows)
        print(f"wrote {config.json}", file=sys.stderr)
    if config.figure is not None:
        from dape.report.bench import bench_figure
        from dape.report.drawing import save_figure

        save_figure(bench_figure(rows, _title(settings)), config.figure)
        print(f"wrote {config.figure}", file=sys.stderr)
    if not settings["complete"]:
        print("interrupted: only what was finished until then is reported", file=sys.stderr)
    print_table(make_table(rows, _title(settings)))
    for impl, why in settings["left_out"].items():
        print(f"{impl} left out: it {why}")


def _title(settings: dict[str, Any]) -> str:
    facts = ["{encoding}", "batch {batch}", "{heads} heads of {head_dim}"]
    facts += ["{hidden} hidden units"] if parse(settings["encoding"]).wrapper else []
    facts += ["{dtype}", "causal" if settings["causal"] else "bidirectional"]
    facts += ["{threads} threads" if settings["device"] == "cpu" else "{device}"]
    return ", ".join(facts).format(**settings)
