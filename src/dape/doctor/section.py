"""A section of the doctor's report: named facts, as text and as JSON. No torch here."""

import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

WIDTH = 80
NAME_WIDTH = 14


@dataclass(frozen=True)
class Line:
    name: str
    value: str
    ok: bool = True
    """False: ``dape doctor`` fails."""


@dataclass(frozen=True)
class Section:
    title: str
    lines: tuple[Line, ...]

    @property
    def ok(self) -> bool:
        return all(line.ok for line in self.lines)

    def as_text(self) -> str:
        return "\n".join([self.title, *map(_wrapped, self.lines)])

    def as_json(self) -> dict[str, Any]:
        return {"title": self.title, "ok": self.ok, "lines": [asdict(line) for line in self.lines]}


def section(title: str, lines: Iterable[Line | tuple[str, str]]) -> Section:
    """Make a section from lines, or from pairs of a name and a value."""
    return Section(title, tuple(line if isinstance(line, Line) else Line(*line) for line in lines))


def json_file(report: Path) -> Path:
    """The JSON file of a report; it lies beside the text."""
    return report.with_name(f"{report.name}.json")


def _wrapped(line: Line) -> str:
    """At most :data:`WIDTH` columns: a path that is longer than a line is broken."""
    indent = " " * (NAME_WIDTH + 4)
    name = f"  {line.name:<{NAME_WIDTH}}  "
    above = f"{name.rstrip()[:WIDTH]}\n" if len(name) > len(indent) else ""
    value = line.value if line.ok else f"FAILED: {line.value}"
    first = indent if above else name
    return above + textwrap.fill(value, WIDTH, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)
