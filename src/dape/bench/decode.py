"""``dape bench decode``: the attention of one new token against a cache. Imports torch only when it runs."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dape.bench.options import WithTorch, check_common, unique
from dape.bench.records import Column, Record, Results, make_table, paired, text, threads_or_device
from dape.bench.runner import Begins, NotMeasuredError, Part, Plan, Timed, command

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor

    from dape.positional.base import PositionalEncoding

SDPA = "sdpa"
TOLERANCE = 5e-4
"""Largest error allowed, relative to the largest value. The reference rotates in float64; float32 angles at thousands
of positions differ by this much."""


@dataclass(frozen=True, kw_only=True)
class DecodeBench(WithTorch):
    """Time of the attention of one new token against cached keys and values, by encoding and length.

    As in the models, the cache holds rotated keys where that is possible, and tables of biases over lags are kept from
    token to token. `sdpa` is PyTorch's attention without positions. Every encoding is first compared with the
    reference. Then all take turns; ratios are taken within a round, and medians count.
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
    seed: int = 0
    """Seed of inputs and parameters."""


def run(config: DecodeBench) -> int:
    """Verify, measure, report. Returns the exit code: 1 if a result is wrong, 130 if interrupted."""
    check_common(config, "batch", "heads", "head_dim", "repeats", "threads", names="encodings")
    config = unique(config, "encodings")
    steps = len(config.lengths) * (len(config.encodings) + 1) * config.repeats
    return command(config, lambda threads: Plan(parts=_parts(config), steps=steps), tables)


# The work ------------------------------------------------------------------------------------------------------------


def _parts(config: DecodeBench) -> Iterator[Part]:
    for length in config.lengths:
        yield Begins(f"{length} keys")
        yield _timed(config, length)


def _timed(config: DecodeBench, length: int) -> Timed:
    """All encodings at one length, verified first."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v, x = _inputs(config, length)
    calls: dict[str, Callable[[], Any]] = {SDPA: partial(scaled_dot_product_attention, q, k, v)}
    impls = {SDPA: SDPA}
    for encoding, pe in _encodings(config):
        impls[encoding] = _verified(encoding, pe, q, k, v, x)
        calls[encoding] = _call(pe, q, k, v, x)
    calls = {name: torch.inference_mode()(call) for name, call in calls.items()}
    return Timed(calls=calls, repeats=config.repeats, warm_up=2, records=partial(_records, config, length, impls))


def _records(
    config: DecodeBench, length: int, impls: Mapping[str, str], seconds: Mapping[str, Sequence[float]]
) -> list[Record]:
    """The records of a length, or none if it was interrupted."""
    if any(len(times) < config.repeats for times in seconds.values()):
        return []
    return [
        {
            "encoding": name,
            "impl": impls[name],
            "length": length,
            "ms": 1000 * statistics.median(times),
            "vs_sdpa": ratio.median if (ratio := paired(times, seconds[SDPA])) else None,
        }
        for name, times in seconds.items()
    ]


def _inputs(config: DecodeBench, length: int) -> "tuple[Tensor, Tensor, Tensor, Tensor]":
    """The last query, keys, values, and the layer's input for encodings that read features."""
    import torch

    generator = torch.Generator().manual_seed(config.seed)
    shape = (config.batch, config.heads, length, config.head_dim)
    q, k, v = (torch.randn(shape, generator=generator).to(config.device) for _ in range(3))
    x = torch.randn(config.batch, length, config.heads * config.head_dim, generator=generator).to(config.device)
    return q[:, :, -1:].contiguous(), k, v, x


def _encodings(config: DecodeBench) -> "Iterator[tuple[str, PositionalEncoding]]":
    import torch

    from dape.positional.build import build
    from dape.positional.randomized import Randomized

    for encoding in config.encodings:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            pe = build(encoding, num_heads=config.heads, head_dim=config.head_dim, train_length=512).to(config.device)
            # All calls use one draw of positions, so that they can be compared.
            yield encoding, pe.draw(max(config.lengths)) if isinstance(pe, Randomized) else pe


def _call(pe: "PositionalEncoding", q: "Tensor", k: "Tensor", v: "Tensor", x: "Tensor") -> Callable[[], Any]:
    from dape.ops.attention import LagMemory, attention

    # Rotating the query and projecting its features are not timed: their cost does not depend on the length.
    memory, features = LagMemory(), pe.features(x)
    return lambda: attention(q, k, v, pe, rotated=pe.rotates_once, memory=memory, features=features)


def _verified(encoding: str, pe: "PositionalEncoding", q: "Tensor", k: "Tensor", v: "Tensor", x: "Tensor") -> str:
    """The implementation that ``auto`` chooses. Raises NotMeasuredError if its result is wrong."""
    import copy

    import torch

    from dape.ops.attention import LagMemory, attention

    with torch.inference_mode():
        out, choice = attention(q, k, v, pe, memory=LagMemory(), features=pe.features(x), explain=True)
        double = copy.deepcopy(pe).double()
        features = double.features(x.double())
        exact = attention(q.double(), k.double(), v.double(), double, features=features, impl="reference")
    error = float((out - exact).abs().max() / exact.abs().max())
    if not error < TOLERANCE:
        off = f"off by {error:.1e} of its largest value (allowed {TOLERANCE:.0e})"
        raise NotMeasuredError(f"dape: {encoding} at {k.shape[2]} keys is {off}")
    return choice.impl


# The report ----------------------------------------------------------------------------------------------------------


def tables(results: Results) -> "Iterator[Table]":
    settings = results.settings
    shape = f"{settings['heads']} heads of {settings['head_dim']}, batch {settings['batch']}"
    columns = [
        Column("keys", lambda r: str(r["length"])),
        text("encoding"),
        text("impl"),
        Column("ms", lambda r: f"{r['ms']:.2f}"),
        Column("vs sdpa", lambda r: f"{r['vs_sdpa']:.2f}x"),
    ]
    if results.records:
        title = f"one query, {shape}, float32, {threads_or_device(settings)}"
        caption = "vs sdpa: time relative to PyTorch's attention without positions, the median over rounds"
        yield make_table(title, caption, results.records, columns, ("length",))
