"""``dape bench decode``: the attention of one new token against a cache. Imports torch only when it runs."""

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.bench.options import (
    INTERRUPTED,
    check_counts,
    check_device,
    check_encoding,
    check_lengths,
    circumstances,
    torch_threads,
)
from dape.bench.progress import Progress
from dape.bench.records import new_table, print_table, write_json
from dape.bench.timing import interleaved
from dape.errors import UsageError
from dape.files import check_writable_file

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor

    from dape.positional.base import PositionalEncoding

SDPA = "sdpa"
TOLERANCE = 5e-4
"""Of the largest value. The reference turns in float64; in float32 angles of thousands of positions differ so much."""


@dataclass(frozen=True, kw_only=True)
class DecodeBench:
    """Time of the attention of one new token against cached keys and values, by encoding and length.

    Keys are cached rotated where that is possible, and tables of biases over lags are kept from token to token, as the
    models do. `sdpa` is PyTorch's attention without positions. Every encoding
    is first compared with the definition, then all take turns; ratios are taken within a round, and medians count.
    """

    lengths: tuple[int, ...] = (1024, 8192)
    """Keys in the cache."""
    encodings: tuple[str, ...] = ("rope", "alibi", "kerple", "fire", "dape-kerple", "dape-fire")
    """Positional encodings from `dape list`."""
    batch: int = 1
    """Sequences per call."""
    heads: int = 12
    """Attention heads."""
    head_dim: int = 64
    """Width of one head."""
    repeats: int = 21
    """Timed repetitions of each call."""
    threads: int | None = None
    """Threads of torch; None leaves the choice to torch."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, cuda:1, ..."""
    json: Path | None = None
    """Also write the results to this file."""
    seed: int = 0
    """Seed of inputs and parameters."""


@dataclass(frozen=True, kw_only=True)
class DecodeRow:
    encoding: str
    """Or sdpa."""
    impl: str
    length: int
    ms: float
    vs_sdpa: float
    """Time relative to sdpa, compared round by round."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run(config: DecodeBench) -> int:
    """Verify, measure, report. Returns the exit code: 1 if a result is wrong, 130 if interrupted."""
    check(config)
    rows: list[DecodeRow] = []
    complete = True
    with torch_threads(config.threads) as threads:
        check_device(config.device)
        steps = len(config.lengths) * (len(dict.fromkeys(config.encodings)) + 1) * config.repeats
        try:
            with Progress(steps) as progress:
                for length in config.lengths:
                    rows += _measure(config, length, progress)
        except KeyboardInterrupt:
            complete = False
            print("interrupted: only what was finished until then is reported", file=sys.stderr)
        except WrongResultError as error:
            print(f"dape: {error}", file=sys.stderr)
            return 1
        settings = {**circumstances(config, threads), "complete": complete}
    if config.json is not None:
        write_json(config.json, settings, rows)
        print(f"wrote {config.json}", file=sys.stderr)
    if rows:
        print_table(make_table(rows, _title(settings)))
    return 0 if complete else INTERRUPTED


def check(config: DecodeBench) -> None:
    check_counts(config, "batch", "heads", "head_dim", "repeats", "threads")
    check_lengths(config.lengths)
    if not config.encodings:
        raise UsageError("--encodings needs at least one name from `dape list`")
    for encoding in config.encodings:
        check_encoding("encodings", encoding)
    if config.json is not None:
        check_writable_file(config.json, "--json")


# The work ------------------------------------------------------------------------------------------------------------


class WrongResultError(Exception):
    pass


def _measure(config: DecodeBench, length: int, progress: Progress) -> list[DecodeRow]:
    import torch

    progress.begin(f"{length} keys")
    q, k, v = _inputs(config, length)
    calls: dict[str, Callable[[], Any]] = {SDPA: lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)}
    impls = {SDPA: SDPA}
    for encoding, pe in _encodings(config):
        impls[encoding] = _verified(encoding, pe, q, k, v)
        calls[encoding] = _call(pe, q, k, v)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    with torch.inference_mode():
        for name, taken in interleaved(calls, config.repeats, warm_up=2):
            seconds[name].append(taken)
            progress.step()
    return [
        DecodeRow(
            encoding=name,
            impl=impls[name],
            length=length,
            ms=1000 * statistics.median(times),
            vs_sdpa=statistics.median(a / b for a, b in zip(times, seconds[SDPA], strict=True)),
        )
        for name, times in seconds.items()
    ]


def _inputs(config: DecodeBench, length: int) -> "tuple[Tensor, Tensor, Tensor]":
    import torch

    generator = torch.Generator().manual_seed(config.seed)
    shape = (config.batch, config.heads, length, config.head_dim)
    q, k, v = (torch.randn(shape, generator=generator).to(config.device) for _ in range(3))
    return q[:, :, -1:].contiguous(), k, v


def _encodings(config: DecodeBench) -> "Iterator[tuple[str, PositionalEncoding]]":
    import torch

    from dape.positional.build import build
    from dape.positional.randomized import Randomized

    for encoding in dict.fromkeys(config.encodings):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            pe = build(encoding, num_heads=config.heads, head_dim=config.head_dim, train_length=512).to(config.device)
            # One draw for all calls: they could not be compared otherwise.
            yield encoding, pe.draw(max(config.lengths)) if isinstance(pe, Randomized) else pe


def _call(pe: "PositionalEncoding", q: "Tensor", k: "Tensor", v: "Tensor") -> Callable[[], Any]:
    from dape.ops.attention import LagMemory, attention

    # Rotating one query is left out too: it is the same for every length.
    memory = LagMemory()
    return lambda: attention(q, k, v, pe, rotated=pe.rotates_once, memory=memory)


def _verified(encoding: str, pe: "PositionalEncoding", q: "Tensor", k: "Tensor", v: "Tensor") -> str:
    """The implementation that computes this encoding, if its result is right."""
    import copy

    import torch

    from dape.ops.attention import LagMemory, attention

    with torch.inference_mode():
        out, choice = attention(q, k, v, pe, memory=LagMemory(), explain=True)
        exact = attention(q.double(), k.double(), v.double(), copy.deepcopy(pe).double(), impl="reference")
    error = float((out - exact).abs().max() / exact.abs().max())
    if not error < TOLERANCE:
        raise WrongResultError(
            f"{encoding} at {k.shape[2]} keys is off by {error:.1e} of its largest value (allowed {TOLERANCE:.0e})"
        )
    return choice.impl


# The report ----------------------------------------------------------------------------------------------------------


def make_table(rows: Sequence[DecodeRow], title: str) -> "Table":
    caption = "vs sdpa: time relative to PyTorch's attention without positions, the median over rounds"
    table = new_table(title, caption)
    table.add_column("keys", justify="right", no_wrap=True)
    for header in ("encoding", "impl"):
        table.add_column(header, no_wrap=True)
    for header in ("ms", "vs sdpa"):
        table.add_column(header, justify="right", no_wrap=True)
    previous = None
    for row in rows:
        if previous not in (None, row.length):
            table.add_section()
        table.add_row(str(row.length), row.encoding, row.impl, f"{row.ms:.2f}", f"{row.vs_sdpa:.2f}x")
        previous = row.length
    return table


def _title(settings: dict[str, Any]) -> str:
    threads = "1 thread" if settings["threads"] == 1 else f"{settings['threads']} threads"
    where = threads if settings["device"] == "cpu" else settings["device"]
    return (
        f"one query, {settings['heads']} heads of {settings['head_dim']}, batch {settings['batch']}, float32, {where}"
    )
