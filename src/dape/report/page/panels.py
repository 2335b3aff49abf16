"""Rows that may stand in one chart: what was measured in the same way, on the same data, at the same scale."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dape.results.records import Row

CHE = "che"
KINDS = ("perplexity", "accuracy", CHE)
"""In the order of the page; any other metric comes after them."""


@dataclass(frozen=True)
class Panel:
    kind: str
    """che, or the metric."""
    rows: tuple[Row, ...]
    """Their method is the label: a variant of a method is a line of its own."""
    bases: dict[str, str]
    """Label -> label of the same encoding without DAPE, where both were measured."""
    among: str
    """What tells this panel from others of its kind; empty if it is the only one."""

    @property
    def train_length(self) -> int:
        return self.rows[0].train_length


def split(rows: Sequence[Row]) -> list[Panel]:
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row, key in zip(rows, _keys(rows), strict=True):
        groups.setdefault(key, []).append(row)
    panels = [_panel(str(key[0]), group, list(groups.values())) for key, group in groups.items()]
    return sorted(panels, key=lambda panel: KINDS.index(panel.kind) if panel.kind in KINDS else len(KINDS))


def _keys(rows: Sequence[Row]) -> list[tuple[object, ...]]:
    """What must be equal. Every task of the Chomsky hierarchy has data of its own: there, the n-th set of each."""
    of_task: dict[object, list[str]] = {}
    keys = []
    for row in rows:
        kind = kind_of(row)
        data: object = row.data_hash
        if kind == CHE:
            seen = of_task.setdefault(row.extra["task"], [])
            seen += [] if row.data_hash in seen else [row.data_hash]
            data = seen.index(row.data_hash)
        scale = (str(row.extra.get("model")), str(row.extra.get("scale")))
        keys.append((kind, row.protocol, data, row.train_length, *scale))
    return keys


def kind_of(row: Row) -> str:
    return CHE if row.protocol == CHE and "task" in row.extra else row.metric


def _panel(kind: str, rows: Sequence[Row], groups: Sequence[Sequence[Row]]) -> Panel:
    from dape.positional.names import base_of

    labels = {row.label: (row.method, row.variant) for row in rows}
    bases = {}
    for label, (method, variant) in labels.items():
        base = base_of(method)
        known = [name for name in (f"{base} ({variant})", str(base)) if name in labels]
        bases |= {label: known[0]} if base and known else {}
    named = tuple(replace(row, method=row.label, variant="") for row in rows)
    alike = [group[0] for group in groups if kind_of(group[0]) == kind]
    return Panel(kind, named, bases, _difference(rows[0], alike))


FACETS: dict[str, Callable[[Row], str]] = {
    "model": lambda row: str(row.extra.get("model") or ""),
    "scale": lambda row: f"scale {row.extra['scale']}" if row.extra.get("scale") else "",
    "train_length": lambda row: f"trained at {row.train_length}",
    "protocol": lambda row: row.protocol,
    "data": lambda row: str(row.extra.get("data") or "data"),
}


def _difference(first: Row, others: Sequence[Row]) -> str:
    """In words: only what differs, and the hash of the data if nothing else does."""
    words = [of(first) for of in FACETS.values() if len({of(other) for other in others}) > 1]
    same = [other for other in others if all(of(other) == of(first) for of in FACETS.values())]
    if len(same) > 1:
        words.append(f"data {first.data_hash[:8]}")
    return ", ".join(word for word in words if word)
