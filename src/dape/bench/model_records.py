"""Records of ``dape bench model``: from times at a few depths to the whole model, with the paper's. No torch here."""

import functools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dape.bench.records import Column, Record, Results, Spread, make_table, paired, spread, text, with_range
from dape.bench.train import TrainPass
from dape.positional.names import base_of
from dape.results import paper
from dape.results.records import Row

if TYPE_CHECKING:
    from rich.table import Table

DAPE_KERPLE = "dape-kerple"
"""The paper's ratios are relative to it."""


# Arithmetic ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """Time as a function of depth: fixed + per_layer x layers."""

    fixed: float
    per_layer: float

    @classmethod
    def through(cls, times: Mapping[int, float]) -> "Line":
        """Least squares over the depths: the line itself if there are two."""
        depth, time = statistics.fmean(times), statistics.fmean(times.values())
        slope = sum((d - depth) * (t - time) for d, t in times.items()) / sum((d - depth) ** 2 for d in times)
        return cls(time - slope * depth, slope)

    def at(self, layers: int) -> float:
        return self.fixed + self.per_layer * layers


def lines(times: Mapping[int, Sequence[float]]) -> list[Line]:
    """A line for every round in which all depths were timed; none for a single depth."""
    if len(times) < 2:
        return []
    return [Line.through(dict(zip(times, round_, strict=True))) for round_ in zip(*times.values(), strict=False)]


@dataclass(frozen=True, kw_only=True)
class Group:
    """A group of cases that take turns and differ only in encoding and depth."""

    size: str
    layers: int
    """Of the whole model."""
    length: int
    pass_: TrainPass
    rounds: int
    """Rounds of an uninterrupted measurement."""
    as_published: bool
    """Whether batch, length and vocabulary are the paper's."""


def make_records(group: Group, samples: Mapping[tuple[str, int], Sequence[float]]) -> list[Record]:
    """Records of the measured depths, then of the whole model.

    ``samples`` holds seconds by encoding and depth; the n-th of each are from round n.
    """
    timed: dict[str, dict[int, Sequence[float]]] = {}
    for (encoding, depth), seconds in samples.items():
        if seconds:
            timed.setdefault(encoding, {})[depth] = seconds
    fitted = {encoding: lines(times) for encoding, times in timed.items()}
    depths = sorted({depth for times in timed.values() for depth in times})
    records = []
    for depth in dict.fromkeys([*depths, group.layers]):
        at_depth = {
            encoding: times[depth] if depth in times else [line.at(depth) for line in fitted[encoding]]
            for encoding, times in timed.items()
        }
        records += [_record(name, depth, at_depth, timed, fitted, group) for name in at_depth if at_depth[name]]
    return records


def _record(
    encoding: str,
    depth: int,
    at_depth: Mapping[str, Sequence[float]],
    timed: Mapping[str, Mapping[int, Sequence[float]]],
    fitted: Mapping[str, Sequence[Line]],
    group: Group,
) -> Record:
    """One encoding at one depth, measured or extrapolated."""
    seconds, base, through = at_depth[encoding], base_of(encoding), fitted[encoding]
    milliseconds = [1000 * s for s in seconds]
    return {
        "size": group.size,
        "encoding": encoding,
        "length": group.length,
        "pass": group.pass_,
        "layers": depth,
        "extrapolated": depth not in timed[encoding],
        "layers_measured": sorted(timed[encoding]),
        **spread("ms", Spread.of(milliseconds)),
        # Slope of the line through the measured depths, and its value at 0 layers: embedding, head, loss, their update.
        "per_layer_ms": 1000 * statistics.median(line.per_layer for line in through) if through else None,
        "fixed_ms": 1000 * statistics.median(line.fixed for line in through) if through else None,
        **spread("vs_dape_kerple", paired(seconds, at_depth.get(DAPE_KERPLE))),
        "base": base if base in at_depth else None,
        **spread("vs_base", paired(seconds, at_depth.get(base or ""))),
        # The paper's ratios (A800), where it has one for this size under these conditions.
        "paper_vs_dape_kerple": paper_ratio(group.size, encoding, DAPE_KERPLE) if group.as_published else None,
        "paper_vs_base": paper_ratio(group.size, encoding, base) if group.as_published else None,
        "samples_ms": milliseconds,  # of every round
        "note": _note(len(seconds), through, group.rounds),
    }


def _note(done: int, through: Sequence[Line], rounds: int) -> str:
    """Missing rounds, and as ``noisy`` the rounds in which more layers did not take longer."""
    flat_ones = sum(line.per_layer <= 0 for line in through)
    notes = [f"{done} of {rounds} rounds"] * (done < rounds)
    notes += [f"noisy: {flat_ones} of {len(through)}"] * (flat_ones > 0)
    return "; ".join(notes)


def paper_ratio(size: str, encoding: str, other: str | None) -> float | None:
    times = _published()
    above, below = times.get((size, encoding)), times.get((size, other or ""))
    return None if above is None or below is None else above / below


@functools.cache
def _published() -> dict[tuple[str, str], float]:
    rows = paper.load("A1")
    return {(row.model.lower(), row.method): row.value for row in rows if row.metric == "milliseconds"}


# As rows of the one type ---------------------------------------------------------------------------------------------

METRICS = {"milliseconds": "ms", "time_ratio_to_dape_kerple": "vs_dape_kerple", "time_ratio_to_base": "vs_base"}
WHERE = ("dtype", "threads", "device", "batch", "torch", "cpu", "cores", "platform", "python", "commit", "date")


def rows(results: Results) -> list[Row]:
    """Times and ratios as result rows."""
    return [
        _row(record, metric, found, results.settings)
        for record in results.records
        for metric, name in METRICS.items()
        if (found := Spread.found_in(record, name)) is not None
    ]


def _row(record: Record, metric: str, value: Spread, settings: Mapping[str, Any]) -> Row:
    return Row(
        run="{encoding}-{size}-{layers}-layers-{pass}".format(**record),
        method=record["encoding"],
        seed=settings["seed"],
        train_length=record["length"],
        length=record["length"],
        metric=metric,
        value=value.median,
        scored_tokens=settings["batch"] * record["length"],
        protocol=record["pass"],
        data_hash="",  # random tokens
        note=record["note"],
        extra={
            "model": record["size"],
            **{name: record[name] for name in ("layers", "layers_measured", "extrapolated", "pass")},
            "q1": value.q1,
            "q3": value.q3,
            "rounds": len(record["samples_ms"]),
            **{name: settings[name] for name in WHERE},
        },
    )


# As a table ----------------------------------------------------------------------------------------------------------

NAMES = {"forward": "fwd", "forward_backward": "fwd+bwd", "step": "step"}
CAPTION = (
    "Milliseconds; fwd: without gradients, step: with AdamW. ~: extrapolated linearly from the measured depths. "
    "Ratios (interquartile range) are medians over rounds, at the last depth shown. "
    "paper: A800, batch 1, 512 tokens; it does not say which pass."
)
NOISY = " noisy: rounds in which more layers did not take longer; distrust extrapolations from them."


def table_of(records: Sequence[Record], title: str) -> "Table":
    """A line for each encoding, length and pass of one size: times at all depths, ratios at the last one."""
    cases: dict[tuple[int, str, str], dict[int, Record]] = {}
    for record in records:
        cases.setdefault((record["length"], record["pass"], record["encoding"]), {})[record["layers"]] = record
    last = [by_depth[max(by_depth)] for by_depth in cases.values()]

    def depth(layers: int, extrapolated: bool) -> Column:
        header = f"{'~' if extrapolated else ''}{layers} layer{'s' if layers > 1 else ''}"
        return Column(header, lambda r: _time(cases[r["length"], r["pass"], r["encoding"]].get(layers)), wraps=True)

    depths = {r["layers"]: r["extrapolated"] for r in sorted(records, key=lambda r: r["layers"])}
    columns = [
        *[Column("length", lambda r: str(r["length"]), left=True)] * (len({r["length"] for r in records}) > 1),
        Column("pass", lambda r: NAMES[r["pass"]], left=True),
        text("encoding"),
        *(depth(layers, extrapolated) for layers, extrapolated in depths.items()),
        Column(f"vs {DAPE_KERPLE}", lambda r: _ratio(r, "vs_dape_kerple"), wraps=True),
        Column("paper", lambda r: _published_ratio(r, "paper_vs_dape_kerple")),
        Column("vs base", lambda r: _ratio(r, "vs_base"), wraps=True),
        Column("paper", lambda r: _published_ratio(r, "paper_vs_base")),
    ]
    caption = CAPTION + NOISY * any("noisy" in record["note"] for record in records)
    return make_table(title, caption, last, columns, ("length", "pass"), narrow=True)


def _time(record: Record | None) -> str:
    if record is None:
        return "-"
    digits = 0 if record["ms"] >= 100 else 1
    return _ranged(record, "ms", digits) if record["extrapolated"] else f"{record['ms']:.{digits}f}"


def _ratio(record: Record, name: str) -> str:
    return "-" if record[name] is None else _ranged(record, name, digits=2)


def _ranged(record: Record, name: str, digits: int) -> str:
    """The median with its range, which is left out for a single round: (0.00) would look like certainty."""
    single = len(record["samples_ms"]) == 1
    number = f"{record[name]:.{digits}f}" if single else with_range(record, name, digits)
    return f"~{number}" if record["extrapolated"] else number


def _published_ratio(record: Record, name: str) -> str:
    return "-" if record[name] is None else f"{record[name]:.2f}"
