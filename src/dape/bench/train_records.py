"""Rows of ``dape bench train``: what the samples of one length say, and how it is shown. Does not import torch."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from dape.bench.records import new_table
from dape.positional.names import base_of

if TYPE_CHECKING:
    from rich.table import Table

TrainPass = Literal["step", "forward_backward", "forward"]

PLAIN_GPT = "plain-gpt"


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    q1: float
    q3: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Self:
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0])
        q1, median, q3 = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, q1, q3)


@dataclass(frozen=True, kw_only=True)
class TrainRow:
    model: str
    """An encoding, or plain-gpt."""
    length: int
    pass_: TrainPass
    ms: Spread
    fastest_ms: float
    """The least disturbed step: worth a look where other work on the machine makes the quartiles wide."""
    tokens_per_second: float
    """From the median."""
    speed_vs_plain_gpt: Spread | None
    """Tokens per second relative to plain-gpt, compared round by round."""
    base: str | None
    """For dape-X the X it is compared with."""
    time_vs_base: Spread | None
    """Time relative to the base, compared round by round."""
    parameters: int
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        return flat(self, "ms", "speed_vs_plain_gpt", "time_vs_base")


def flat(row: Any, *spreads: str) -> dict[str, Any]:
    """A row for data frames: a spread becomes its median under the plain name, and two quartiles."""
    columns: dict[str, Any] = {}
    for name, value in asdict(row).items():
        if name in spreads:
            spread = value or dict.fromkeys(("median", "q1", "q3"))
            columns |= {name: spread["median"], f"{name}_q1": spread["q1"], f"{name}_q3": spread["q3"]}
        else:
            columns[name.rstrip("_")] = value
    return columns


def make_rows(
    samples: Mapping[str, Sequence[float]],
    *,
    length: int,
    pass_: TrainPass,
    batch: int,
    parameters: Mapping[str, int],
    repeats: int,
) -> list[TrainRow]:
    """One row per model that was timed at all. ``samples`` holds seconds, the n-th of every model from round n."""
    timed = {model: seconds for model, seconds in samples.items() if seconds}
    rows = []
    for model, seconds in timed.items():
        base = base_of(model)
        complete = len(seconds) == repeats
        row = TrainRow(
            model=model,
            length=length,
            pass_=pass_,
            ms=Spread.of([1000 * s for s in seconds]),
            fastest_ms=1000 * min(seconds),
            tokens_per_second=batch * length / statistics.median(seconds),
            speed_vs_plain_gpt=paired(timed.get(PLAIN_GPT), seconds),
            base=base if base in timed else None,
            time_vs_base=paired(seconds, timed.get(base or "")),
            parameters=parameters[model],
            note="" if complete else f"interrupted after {len(seconds)} of {repeats} repetitions",
        )
        rows.append(row)
    return rows


def paired(above: Sequence[float] | None, below: Sequence[float] | None) -> Spread | None:
    """Ratios within a round: what slows the machine down for seconds slows both alike and cancels."""
    if above is None or below is None:
        return None
    # An interrupted last round may lack one of the two. Noise can push extrapolated times below zero: no ratio then.
    ratios = [a / b for a, b in zip(above, below, strict=False) if a > 0 and b > 0]
    return Spread.of(ratios) if ratios else None


# As a table ----------------------------------------------------------------------------------------------------------

CAPTION = (
    "(...): interquartile range. speed: tokens/s relative to plain-gpt, more is better. "
    "time: dape-X relative to X, less is better. Both are medians of the ratios within a round."
)


def make_table(rows: Sequence[TrainRow], title: str) -> "Table":
    """One line per row, grouped by length and pass. A single pass takes no column: the title names it."""
    table = new_table(title, CAPTION)
    table.pad_edge, table.collapse_padding = False, True  # so that it fits 80 columns
    table.add_column("length", justify="right", no_wrap=True)
    table.add_column("model", overflow="fold")
    for header in ("ms", "tokens/s", "speed", "time", "params"):
        table.add_column(header, justify="right", no_wrap=True)
    several, noted = len({row.pass_ for row in rows}) > 1, any(row.note for row in rows)
    for header in ["pass"] * several + ["note"] * noted:
        table.add_column(header, overflow="fold")
    previous = None
    for row in rows:
        group = (row.length, row.pass_)
        if previous not in (None, group):
            table.add_section()
        table.add_row(*_cells(row), *[row.pass_.replace("_", "+")] * several, *[row.note] * noted)
        previous = group
    return table


def _cells(row: TrainRow) -> list[str]:
    return [
        str(row.length),
        row.model,
        with_range(row.ms, digits=0 if row.ms.median >= 1000 else 1),
        f"{row.tokens_per_second:.0f}",
        with_range(row.speed_vs_plain_gpt),
        with_range(row.time_vs_base),
        _millions(row.parameters),
    ]


def with_range(spread: Spread | None, digits: int = 2) -> str:
    return "-" if spread is None else f"{spread.median:.{digits}f} ({spread.q3 - spread.q1:.{digits}f})"


def _millions(count: int) -> str:
    return f"{count / 1e6:.2f}M" if count < 100e6 else f"{count / 1e6:.0f}M"
