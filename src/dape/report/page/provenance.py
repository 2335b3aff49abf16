"""Where the numbers of a section come from, as its rows say."""

from collections.abc import Callable, Iterable, Sequence

from dape.report.page.blocks import Fact
from dape.results.records import Row

MOST = 12
"""At most so many values of one fact are shown."""


def _extra(*names: str) -> Callable[[Row], Iterable[object]]:
    return lambda row: [value for name in names for value in as_list(row.extra.get(name))]


FACTS: dict[str, Callable[[Row], Iterable[object]]] = {
    "command": _extra("command", "commands"),
    "commit": _extra("commit"),
    "dape": _extra("dape"),
    "torch": _extra("torch"),
    "Python": _extra("python"),
    "processor": lambda row: [f"{row.extra['cpu']}, {row.extra.get('cores', '?')} cores"] if "cpu" in row.extra else [],
    "device": _extra("device", "gpu"),
    "threads": _extra("threads"),
    "precision": _extra("precision"),
    "system": _extra("platform"),
    "data": _extra("data", "filler"),
    "hash of the data": lambda row: [row.data_hash[:16]],
    "tokenizer": lambda row: [row.tokenizer],
    "model": _extra("model"),
    "scale": _extra("scale"),
    "training length": lambda row: [row.train_length],
    "steps": lambda row: as_list(row.step),
    "protocol": lambda row: [row.protocol],
    "scored tokens per window": lambda row: as_list(row.k),
    "windows": lambda row: as_list(row.windows),
    "seeds": lambda row: [row.seed],
    "notes": lambda row: [row.note],
}


def as_list(value: object) -> list[object]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def facts_of(rows: Sequence[Row]) -> list[Fact]:
    found = []
    some = {
        (row.run, row.k, row.windows, row.note): row for row in rows
    }.values()  # rows of a run share all other facts
    for name, values_of in FACTS.items():
        seen = dict.fromkeys(value for row in some for value in map(_plain, values_of(row)) if value != "")
        values = [str(value) for value in (sorted(seen) if all(isinstance(v, int) for v in seen) else seen)]
        if len(values) > MOST:
            values = [*values[:MOST], f"and {len(values) - MOST} more"]
        found += [Fact(name, values)] if values else []
    return found + _dates(rows)


def _plain(value: object) -> str | int:
    return value if isinstance(value, str | int) else str(value)


def _dates(rows: Sequence[Row]) -> list[Fact]:
    dates = sorted({date for row in rows if isinstance(date := row.extra.get("date"), str)})
    if not dates:
        return []
    first, last = dates[0][:16].replace("T", " "), dates[-1][:16].replace("T", " ")
    return [Fact("measured", [first if first == last else f"{first} to {last}"])]


def reduced_of(rows: Sequence[Row]) -> list[str]:
    """What the rows say was smaller than in the paper."""
    return list(dict.fromkeys(str(text) for row in rows for text in as_list(row.extra.get("reduced")) if text))
