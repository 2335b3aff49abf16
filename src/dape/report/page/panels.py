"""Groups of rows that may share a chart: measured in the same way, on the same data, at the same scale."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dape.positional.names import base_of
from dape.results.records import Row

CHE = "che"
KINDS = ("perplexity", "accuracy", CHE)
"""Kinds of panels in the order of the page. Any other metric comes after them."""


@dataclass(frozen=True)
class Panel:
    kind: str
    """che, or the metric."""
    rows: tuple[Row, ...]
    """Their ``method`` is the label, with the variant if there is one."""
    bases: dict[str, str]
    """Label -> label of the same encoding without DAPE, where both were measured."""
    difference: str
    """What differs from other panels of the same kind; empty if there are none."""

    @property
    def train_length(self) -> int:
        return self.rows[0].train_length

    def titled(self, title: str) -> str:
        return f"{title}: {self.difference}" if self.difference else title


def split(rows: Sequence[Row]) -> list[Panel]:
    """The panels of the page, in its order."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row, key in zip(rows, _keys(rows), strict=True):
        groups.setdefault(key, []).append(row)
    panels = [_panel(str(key[0]), group, list(groups.values())) for key, group in groups.items()]
    return sorted(panels, key=lambda panel: KINDS.index(panel.kind) if panel.kind in KINDS else len(KINDS))


def _keys(rows: Sequence[Row]) -> list[tuple[object, ...]]:
    """For each row, what rows of one panel share.

    Every Chomsky task has its own data, so there the data are counted: the n-th data of each task go together.
    """
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
    labels = {row.label: (row.method, row.variant) for row in rows}
    bases = {}
    for label, (method, variant) in labels.items():
        base = base_of(method)
        known = [name for name in (f"{base} ({variant})", str(base)) if name in labels]
        bases |= {label: known[0]} if base and known else {}
    named = tuple(replace(row, method=row.label, variant="") for row in rows)
    same_kind = [group[0] for group in groups if kind_of(group[0]) == kind]
    return Panel(kind, named, bases, _difference(rows[0], same_kind))


FACETS: tuple[Callable[[Row], str], ...] = (
    lambda row: str(row.extra.get("model") or ""),
    lambda row: f"scale {row.extra['scale']}" if row.extra.get("scale") else "",
    lambda row: f"trained at {row.train_length}",
    lambda row: row.protocol,
    lambda row: str(row.extra.get("data") or "data"),
)
"""What may differ between panels of one kind, in words."""


def _difference(first: Row, others: Sequence[Row]) -> str:
    """The facets that differ between panels, in words, and the hash of the data if all facets are equal."""
    words = [facet(first) for facet in FACETS if len({facet(other) for other in others}) > 1]
    same = [other for other in others if all(facet(other) == facet(first) for facet in FACETS)]
    if len(same) > 1:
        words.append(f"data {first.data_hash[:8]}")
    return ", ".join(word for word in words if word)
