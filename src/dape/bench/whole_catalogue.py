"""``dape bench attention --encodings all``: one table of all encodings, beside PyTorch's attention without positions.

``auto`` chooses the implementation of each encoding. Imports torch only when it runs.
"""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from dape.bench.options import check_encoding, fields_for
from dape.bench.records import (
    Column,
    Record,
    Results,
    interrupted_note,
    make_table,
    paired,
    pass_name,
    spread,
    text,
    threads_or_device,
)
from dape.bench.runner import NotMeasuredError, Once, Part, Plan, Timed, command
from dape.errors import UsageError
from dape.positional.catalogue import encodings

if TYPE_CHECKING:
    from rich.table import Table

    from dape.bench.attention import AttentionBench, Pass
    from dape.bench.cases import Inputs

ALL, SDPA = "all", "sdpa"


def chosen(given: Sequence[str]) -> tuple[str, ...]:
    """The given names, or all names of the catalogue for ``all``."""
    if ALL in given:
        if len(given) > 1:
            raise UsageError(f"`encodings` {ALL} means the whole catalogue: give either {ALL} or names")
        return tuple(encodings())
    for name in given:
        check_encoding("encodings", name)
    return tuple(dict.fromkeys(given))


def run(config: "AttentionBench") -> int:
    """Verify, measure, report. Returns the exit code: 1 if a result is wrong, 130 if interrupted."""
    names = chosen(config.encodings)
    return command(replace(config, encodings=names), lambda threads: _plan(config, names, threads), tables)


def _plan(config: "AttentionBench", names: Sequence[str], threads: int) -> Plan:
    cases = len(names) * len(config.lengths) * len(config.passes)
    steps = cases * (2 * config.repeats + config.memory)
    return Plan(parts=_parts(config, names, threads), steps=steps)


def _parts(config: "AttentionBench", names: Sequence[str], threads: int) -> Iterator[Part]:
    from dape.bench.cases import Shape, add_memory, disagreements, make_inputs

    for length in config.lengths:
        for name in names:
            shape = replace(fields_for(Shape, config), encoding=name)
            if wrong := disagreements(shape, "auto", config.passes):
                words = f"dape bench: {name} differs from the reference in float64, so it was not timed"
                raise NotMeasuredError("\n".join([*wrong, words]))
            inputs, timed = make_inputs(shape, length), list[Record]()
            for pass_ in config.passes:
                yield _timed(config, name, inputs, length, pass_, timed)
            for record in timed if config.memory else ():
                yield Once(do=partial(add_memory, record, shape, "auto", threads))


def _timed(
    config: "AttentionBench", name: str, inputs: "Inputs", length: int, pass_: "Pass", timed: list[Record]
) -> Timed:
    """The encoding and ``sdpa`` in turns. The record is also appended to ``timed``."""
    from dape.bench.cases import make_call, run_once

    calls = {impl: make_call(impl, inputs, pass_) for impl in (SDPA, "auto")}
    _, choice = run_once("auto", inputs, explain=True)

    def records(samples: Mapping[str, Sequence[float]]) -> list[Record]:
        seconds, base = samples["auto"], samples[SDPA]
        if not (seconds and base):
            return []
        about = {"encoding": name, "length": length, "pass": pass_, "impl": choice.impl, "kernel": choice.kernel}
        ratio = spread("vs_sdpa", paired(seconds, base))
        note = interrupted_note(len(seconds), config.repeats)
        timed.append({**about, "ms": 1000 * statistics.median(seconds), **ratio, "peak_mb": None, "note": note})
        return timed[-1:]

    what = f"{name}, {length} tokens, {pass_name(pass_)}"
    clock = time.process_time if config.clock == "cpu" else time.perf_counter
    return Timed(what=what, calls=calls, repeats=config.repeats, records=records, clock=clock)


# The report ----------------------------------------------------------------------------------------------------------

CAPTION = (
    "x: time relative to PyTorch's attention without positions, median of rounds; "
    "MB: most memory held beyond the inputs, in the last pass"
)


def tables(results: Results) -> "Iterator[Table]":
    """A table for each length, with a line per encoding and columns for each pass."""
    lines: dict[tuple[int, str], Record] = {}
    for record in results.records:
        line = lines.setdefault((record["length"], record["encoding"]), {**record, "note": ""})
        line[record["pass"]] = record
        line["note"] = line["note"] or record["note"]
    if not lines:
        return
    columns = [text("encoding"), text("kernel")]
    for pass_ in (passes := results.settings["passes"]):
        columns += [
            _number(pass_, "ms", "fwd ms" if pass_ == "forward" else "f+b ms", 0),
            _number(pass_, "vs_sdpa", "x", 2),
        ]
    if results.settings["memory"]:
        columns.append(_number(passes[-1], "peak_mb", "MB", 0))
    for length in dict.fromkeys(length for length, _ in lines):
        records = [line for (t, _), line in lines.items() if t == length]
        yield make_table(_title(results, length), CAPTION, records, columns, narrow=True)


def _number(pass_: str, name: str, header: str, digits: int) -> Column:
    def cell(line: Record) -> str:
        value = line.get(pass_, {}).get(name)
        return "-" if value is None else f"{value:.{digits}f}"

    return Column(header, cell)


def _title(results: Results, length: int) -> str:
    given = results.settings
    mask = "causal" if given["causal"] else "bidirectional"
    shape = f"{length} tokens, batch {given['batch']}, {given['heads']} heads of {given['head_dim']}"
    clock = ", processor time" if given["clock"] == "cpu" else ""
    return f"{shape}, {given['dtype']}, {mask}, {threads_or_device(given)}{clock}"
