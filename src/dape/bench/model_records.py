"""Rows of ``dape bench model``: from times at a few depths to the whole model, beside the paper's. No torch here."""

import functools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dape.bench.records import new_table
from dape.bench.train_records import Spread, TrainPass, flat, paired, with_range
from dape.positional.names import base_of
from dape.results import paper
from dape.results.records import Row

if TYPE_CHECKING:
    from rich.table import Table

PASSES: tuple[TrainPass, ...] = ("forward", "forward_backward", "step")
"""Each does more than the one before, and needs more memory."""
DAPE_KERPLE = "dape-kerple"
"""The paper's ratios are relative to it."""


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """One model at one depth: measured, or extrapolated to the whole."""

    size: str
    encoding: str
    length: int
    pass_: TrainPass
    layers: int
    extrapolated: bool
    """Not timed, but the continuation of a line through the depths that were."""
    layers_measured: tuple[int, ...]
    ms: Spread
    per_layer_ms: float | None
    """Slope of that line, the median over rounds; None without a second depth."""
    fixed_ms: float | None
    """Its value at no layers: embedding, head, loss, and the optimizer of these."""
    vs_dape_kerple: Spread | None
    """Time relative to dape-kerple at the same depth, compared round by round."""
    base: str | None
    """For dape-X the X it is compared with."""
    vs_base: Spread | None
    """Time relative to the base, likewise."""
    paper_vs_dape_kerple: float | None
    """The paper's ratio (A800), where it has one for this size under these conditions."""
    paper_vs_base: float | None
    samples_ms: tuple[float, ...]
    """Of every round."""
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        return flat(self, "ms", "vs_dape_kerple", "vs_base")


@dataclass(frozen=True, kw_only=True)
class ModelResult:
    rows: tuple[ModelRow, ...]
    skipped: tuple[str, ...]
    """What did not fit the memory, in words."""
    settings: Mapping[str, Any]
    """Options, shapes of the models, machine, versions."""
    complete: bool
    """False if it was interrupted."""


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
    """One for every round in which all depths were timed; none from a single depth."""
    if len(times) < 2:
        return []
    return [Line.through(dict(zip(times, round_, strict=True))) for round_ in zip(*times.values(), strict=False)]


@dataclass(frozen=True, kw_only=True)
class Group:
    """What was timed together, but for encoding and depth."""

    size: str
    layers: int
    """Of the whole model."""
    length: int
    pass_: TrainPass
    rounds: int
    """How many there should be."""
    as_published: bool
    """Batch, length and vocabulary are the paper's."""


def make_rows(samples: Mapping[tuple[str, int], Sequence[float]], group: Group) -> list[ModelRow]:
    """``samples`` holds seconds by encoding and depth, the n-th of each from round n. Measured depths come first."""
    timed: dict[str, dict[int, Sequence[float]]] = {}
    for (encoding, depth), seconds in samples.items():
        if seconds:
            timed.setdefault(encoding, {})[depth] = seconds
    fitted = {encoding: lines(times) for encoding, times in timed.items()}
    depths = sorted({depth for times in timed.values() for depth in times})
    rows = []
    for depth in dict.fromkeys([*depths, group.layers]):
        here = {
            encoding: times[depth] if depth in times else [line.at(depth) for line in fitted[encoding]]
            for encoding, times in timed.items()
        }
        rows += [_row(encoding, depth, here, timed, fitted, group) for encoding in here if here[encoding]]
    return rows


def _row(
    encoding: str,
    depth: int,
    here: Mapping[str, Sequence[float]],
    timed: Mapping[str, Mapping[int, Sequence[float]]],
    fitted: Mapping[str, Sequence[Line]],
    group: Group,
) -> ModelRow:
    seconds, base, through = here[encoding], base_of(encoding), fitted[encoding]
    milliseconds = tuple(1000 * s for s in seconds)
    return ModelRow(
        size=group.size,
        encoding=encoding,
        length=group.length,
        pass_=group.pass_,
        layers=depth,
        extrapolated=depth not in timed[encoding],
        layers_measured=tuple(sorted(timed[encoding])),
        ms=Spread.of(milliseconds),
        per_layer_ms=1000 * statistics.median(line.per_layer for line in through) if through else None,
        fixed_ms=1000 * statistics.median(line.fixed for line in through) if through else None,
        vs_dape_kerple=paired(seconds, here.get(DAPE_KERPLE)),
        base=base if base in here else None,
        vs_base=paired(seconds, here.get(base or "")),
        paper_vs_dape_kerple=paper_ratio(group.size, encoding, DAPE_KERPLE) if group.as_published else None,
        paper_vs_base=paper_ratio(group.size, encoding, base) if group.as_published else None,
        samples_ms=milliseconds,
        note=_note(len(seconds), through, group.rounds),
    )


def _note(done: int, through: Sequence[Line], rounds: int) -> str:
    """``noisy``: rounds in which more layers did not take longer."""
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


def rows(result: ModelResult) -> list[Row]:
    """Times, and ratios to dape-kerple under the paper's name for them, for whatever reads result rows."""
    found = []
    for row in result.rows:
        found.append(_record(row, "milliseconds", row.ms, result.settings))
        if row.vs_dape_kerple is not None:
            found.append(_record(row, "time_ratio_to_dape_kerple", row.vs_dape_kerple, result.settings))
        if row.vs_base is not None:
            found.append(_record(row, "time_ratio_to_base", row.vs_base, result.settings))
    return found


def _record(row: ModelRow, metric: str, value: Spread, settings: Mapping[str, Any]) -> Row:
    where = ("dtype", "threads", "device", "batch", "torch", "cpu", "cores", "platform", "python", "commit", "date")
    return Row(
        run=f"{row.encoding}-{row.size}-{row.layers}-layers-{row.pass_}",
        method=row.encoding,
        seed=settings["seed"],
        train_length=row.length,
        length=row.length,
        metric=metric,
        value=value.median,
        scored_tokens=settings["batch"] * row.length,
        protocol=row.pass_,
        data_hash="",  # random tokens
        note=row.note,
        extra={
            "model": row.size,
            "layers": row.layers,
            "layers_measured": list(row.layers_measured),
            "extrapolated": row.extrapolated,
            "pass": row.pass_,
            "q1": value.q1,
            "q3": value.q3,
            "rounds": len(row.samples_ms),
            **{name: settings[name] for name in where},
        },
    )


# As a table ----------------------------------------------------------------------------------------------------------

NAMES = {"forward": "fwd", "forward_backward": "fwd+bwd", "step": "step"}
CAPTION = (
    "Milliseconds; fwd: without gradients, step: with AdamW. ~: not measured, but continued linearly from the depths "
    "that were. Ratios (interquartile range) are medians of those within a round, at the last depth shown. "
    "paper: A800, batch 1, 512 tokens; it does not say which pass."
)
NOISY = " noisy: rounds in which more layers did not take longer; distrust what was continued from them."


def make_table(rows: Sequence[ModelRow], title: str) -> "Table":
    """One line per encoding, length and pass of one size."""
    table = new_table(title, CAPTION + NOISY * any("noisy" in row.note for row in rows))
    table.pad_edge, table.collapse_padding = False, True  # so that it fits 80 columns
    cases: dict[tuple[int, str, str], dict[int, ModelRow]] = {}
    for row in rows:
        cases.setdefault((row.length, NAMES[row.pass_], row.encoding), {})[row.layers] = row
    depths = {row.layers: row.extrapolated for row in sorted(rows, key=lambda row: row.layers)}
    several, noted = len({row.length for row in rows}) > 1, any(row.note for row in rows)
    for header in ["length"] * several + ["pass", "encoding"]:
        table.add_column(header, no_wrap=True)
    ratios = (f"vs {DAPE_KERPLE}", "paper", "vs base", "paper")
    for header in [_depth(layers, guessed) for layers, guessed in depths.items()] + list(ratios):
        table.add_column(header, justify="right", overflow="fold", no_wrap=header == "paper")
    if noted:
        table.add_column("note", overflow="fold")
    previous = None
    for (length, pass_, encoding), by_depth in cases.items():
        if previous not in (None, (length, pass_)):
            table.add_section()
        last = by_depth[max(by_depth)]
        cells = [str(length)] * several + [pass_, encoding, *(_time(by_depth.get(layers)) for layers in depths)]
        table.add_row(*cells, *_ratios(last), *[last.note] * noted)
        previous = (length, pass_)
    return table


def _depth(layers: int, extrapolated: bool) -> str:
    return f"{'~' if extrapolated else ''}{layers} layer{'s' if layers > 1 else ''}"


def _time(row: ModelRow | None) -> str:
    if row is None:
        return "-"
    digits = 0 if row.ms.median >= 100 else 1
    return f"~{_ranged(row, row.ms, digits)}" if row.extrapolated else f"{row.ms.median:.{digits}f}"


def _ranged(row: ModelRow, spread: Spread, digits: int = 2) -> str:
    """A single round has no range: (0.00) would look like certainty."""
    return with_range(spread, digits) if len(row.samples_ms) > 1 else f"{spread.median:.{digits}f}"


def _ratios(row: ModelRow) -> list[str]:
    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    flag = "~" if row.extrapolated else ""
    ours = [flag + _ranged(row, r) if r is not None else "-" for r in (row.vs_dape_kerple, row.vs_base)]
    return [ours[0], number(row.paper_vs_dape_kerple), ours[1], number(row.paper_vs_base)]
