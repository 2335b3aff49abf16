"""``dape bench memory``: peak memory of attention by length, for all kinds. Imports torch only when it runs."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from dape.bench.options import WithTorch, check_common, fields_for, unique
from dape.bench.records import Column, Record, Results, make_table, text, threads_or_device
from dape.bench.runner import Once, Plan, command

if TYPE_CHECKING:
    from rich.table import Table

ONE_OF_EACH_KIND = (
    *("rope", "kerple", "fire", "fox", "transformer-xl", "cope"),
    *("dape-kerple", "dape-fire", "dape-fox", "dape-v2-kerple", "dape-v2-fire"),
)


@dataclass(frozen=True, kw_only=True)
class MemoryBench(WithTorch):
    """Peak memory of attention by length, each encoding by the kernel that `auto` takes for it.

    The most memory that one call holds beyond its inputs, each in a process of its own. By default one encoding for
    every kind of kernel, forward and backward.
    """

    lengths: tuple[int, ...] = (1024, 2048, 4096, 8192)
    """Sequence lengths."""
    encodings: tuple[str, ...] = ONE_OF_EACH_KIND
    """Positional encodings from `dape list`."""
    backward: bool = True
    """With the gradients of q, k, v and all parameters (`--no-backward`: forward alone)."""
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
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    """Precision of queries, keys and values."""
    seed: int = 0
    """Seed of inputs and parameters."""


def run(config: MemoryBench) -> int:
    """Measure and report. Returns the exit code: 1 if a call failed, 130 if interrupted."""
    check_common(config, "batch", "heads", "head_dim", "hidden", "threads", names="encodings")
    config = unique(config, "lengths", "encodings")
    return command(
        config,
        lambda threads: _plan(config, threads),
        tables,
        failed=lambda results: any(record["peak_mb"] is None for record in results.records),
    )


def _plan(config: MemoryBench, threads: int) -> Plan:
    cases = [(encoding, length) for encoding in config.encodings for length in config.lengths]
    parts = [
        Once(what=f"{encoding}, {length} tokens", do=partial(_measured, config, encoding, length, threads))
        for encoding, length in cases
    ]
    return Plan(parts=parts, steps=len(parts))


def _measured(config: MemoryBench, encoding: str, length: int, threads: int) -> list[Record]:
    from dape.bench.cases import Shape, add_memory, make_inputs, run_once

    pass_ = "forward_backward" if config.backward else "forward"
    shape = fields_for(Shape, config, encoding=encoding)
    _, choice = run_once("auto", make_inputs(shape, min(length, 512)), explain=True)
    about = {"encoding": encoding, "length": length, "pass": pass_, "impl": choice.impl, "kernel": choice.kernel}
    record = {**about, "peak_mb": None, "note": ""}
    add_memory(record, shape, "auto", threads)
    return [record]


def tables(results: Results) -> "Iterator[Table]":
    """One line per encoding, its lengths beside each other."""
    given = results.settings
    lines: dict[str, Record] = {}
    for record in results.records:
        line = lines.setdefault(record["encoding"], dict(record))
        line[str(record["length"])] = record["peak_mb"]
        line["note"] = line["note"] or record["note"]
    if not lines:
        return
    columns = [text("encoding"), text("kernel"), *(_of_length(length) for length in given["lengths"])]
    if any(line["note"] for line in lines.values()):
        columns.append(text("note"))
    shape = f"batch {given['batch']}, {given['heads']} heads of {given['head_dim']}, {given['dtype']}"
    passes = "forward and backward" if given["backward"] else "forward"
    title = f"peak memory in MB by tokens, {passes}, {shape}, {threads_or_device(given)}"
    yield make_table(title, "beyond the inputs; a MB is 10^6 bytes", list(lines.values()), columns)


def _of_length(length: int) -> Column:
    def cell(line: Record) -> str:
        value = line.get(str(length))
        return "-" if value is None else f"{value:.0f}"

    return Column(str(length), cell)
