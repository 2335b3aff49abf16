"""The type of all result rows, and JSON Lines files of rows, which are only appended to. No torch here."""

import json
import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, dataclass, field, fields
from io import RawIOBase
from pathlib import Path
from typing import Any

from dape.errors import UsageError
from dape.files import check_writable_file
from dape.reading import as_record, parse_json, read_json_lines, reason, short


@dataclass(frozen=True, kw_only=True)
class Row:
    run: str
    """Name of the training run, unique within a file, for instance dape-kerple-seed0."""
    method: str
    """Positional encoding, spelled as in `dape list`."""
    seed: int
    """Seed of weights and data order."""
    train_length: int
    length: int
    """Tokens of context at which the value was measured."""
    metric: str
    """perplexity, nll (nats per token), accuracy (0 to 1), ..."""
    value: float
    scored_tokens: int
    protocol: str
    """How tokens were chosen: last_k, full, nonoverlap, per_position, mqar, passkey, ..."""
    data_hash: str
    """Hash of the text that was scored."""
    variant: str = ""
    """Options of the method, such as hidden=4, if the runs of a file differ in them; as in the paper's tables."""
    k: int | None = None
    """Scored tokens per window, if the protocol limits them."""
    windows: int | None = None
    """Number of windows, the same at every length."""
    mode: str = ""
    """packed (windows run across documents) or same_document."""
    reach: int | None = None
    """Tokens before the end of every window. With data, k, windows and mode it determines which tokens were scored. Old
    rows have none: there it was the greatest length of the run."""
    step: int | None = None
    """Optimizer steps the model was trained for."""
    tokenizer: str = ""
    window_nll: tuple[float, ...] = ()
    """Mean nats per scored token of each window, in the order of the anchors: windows pair up between methods."""
    note: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    """Other facts: range of positions, depth, precision, threads, versions, commit."""

    @property
    def label(self) -> str:
        """The method, with its variant if it has one."""
        return f"{self.method} ({self.variant})" if self.variant else self.method

    def as_json(self) -> str:
        """One line. Fields with their default are left out; infinity, which JSON does not have, is written as text."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        needed = {name: value for name, value in given.items() if name in _REQUIRED or value not in (None, "", (), {})}
        needed["value"] = _as_text_if_infinite(self.value)
        if self.window_nll:
            needed["window_nll"] = [_as_text_if_infinite(nats) for nats in self.window_nll]
        return json.dumps(needed)

    @classmethod
    def from_json(cls, line: str) -> "Row":
        """Parse a line. ValueError if it is not a row, or a field has the wrong type."""
        return cls.from_plain(parse_json(line))

    @classmethod
    def from_plain(cls, given: Any) -> "Row":
        """A row from the content of a line. Unknown fields go into ``extra``."""
        if not isinstance(given, dict):
            raise ValueError("not a JSON object")
        missing = [name for name in _REQUIRED if name not in given]
        if missing:
            raise ValueError(f"no {', '.join(missing)}")
        known = {f.name for f in fields(cls)}
        values = {name: v for name, v in given.items() if name in known}
        more = {name: v for name, v in given.items() if name not in known}
        if more and isinstance(values.setdefault("extra", {}), dict):
            values["extra"] = {**values["extra"], **more}
        values["value"] = _from_text(values["value"])
        if isinstance(windows := values.get("window_nll"), list):
            values["window_nll"] = [_from_text(nats) for nats in windows]
        return as_record(cls, values)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


_REQUIRED = tuple(f.name for f in fields(Row) if f.default is MISSING and f.default_factory is MISSING)


def _as_text_if_infinite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _from_text(value: Any) -> Any:
    return float(value) if value in ("inf", "-inf", "nan") else value


# Files ---------------------------------------------------------------------------------------------------------------

_FIRST = b'{"rows": '
"""The beginning of the first line of rows that were written at once; their number follows. Older versions of dape wrote
rows without it, and read it into ``extra``."""


def rows_text(rows: Iterable[Row]) -> str:
    """Lines to be written at once. The first one says how many they are, so that missing ones are noticed."""
    lines = [row.as_json() for row in rows]
    if lines:
        lines[0] = f"{_FIRST.decode()}{len(lines)}, {lines[0][1:]}"
    return "".join(line + "\n" for line in lines)


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Append rows, all or none. Incomplete rows at the end, which a crash has left, are removed first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = rows_text(rows).encode()
    with path.open("ab+", buffering=0) as file:
        end = _end_of_whole_rows(file)
        file.truncate(end)
        file.seek(max(end - 1, 0))
        if file.read(1) not in (b"\n", b""):  # the last row is complete except for its line break
            text = b"\n" + text
        try:
            while text:
                text = text[file.write(text) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(end)
            raise


def _is_row(line: bytes) -> bool:
    try:
        Row.from_json(line.decode())
    except ValueError:
        return False
    return True


def _end_of_whole_rows(file: RawIOBase) -> int:
    """Where the last complete group of rows ends; a group is what was written at once. Reads from the back."""
    size = start = file.seek(0, os.SEEK_END)
    tail, begin = b"", -1
    while start > 0 and begin < 0:
        file.seek(max(start - 65536, 0))
        tail = (file.read(start - file.tell()) or b"") + tail
        start = max(start - 65536, 0)
        begin = (b"\n" + tail).rfind(b"\n" + _FIRST) if start == 0 else tail.rfind(b"\n" + _FIRST) + 1 or -1
    lines = tail[max(begin, 0) :].split(b"\n")
    if begin >= 0 and _is_short(lines):
        return start + begin
    return size if _is_row(lines[-1]) else size - len(lines[-1])


def _is_short(lines: list[bytes]) -> bool:
    """Whether there are fewer rows than the first line says."""
    found = sum(1 for line in lines[:-1] if line.strip()) + _is_row(lines[-1])
    number = re.match(_FIRST + rb"(\d{1,18}),", lines[0])
    return number is not None and found < int(number[1])


def read_rows(path: Path, *, unfinished: bool = False, warn: Callable[[str], None] | None = None) -> list[Row]:
    """All rows of a file.

    Args:
        path: a file of :func:`append_rows`.
        unfinished: the last group of rows (what was written at once) may be incomplete. It is then left out, and
            :func:`append_rows` will replace it.
        warn: called with each problem, instead of raising an error; everything else is read.

    Raises:
        ValueError: a line that is not a row, or fewer rows than the file says. A last line that a crash has cut off is
            left out if the file does not say how many rows there were.
    """
    rows: list[Row] = []
    first, count, line = 0, 0, 0  # of the current group: its first row, how many it should have, its line

    def refuse(what: str) -> None:
        if warn is None:
            raise ValueError(f"{path}, {what}")
        warn(what)

    def check_count() -> None:
        if len(rows) < first + count:
            refuse(f"line {line}: says {count} rows and has {len(rows) - first}: cut off. {_ADVICE}")

    for number, whole, text in read_json_lines(path):
        try:
            row, stated = _row_and_count(text)
        except ValueError as error:
            if whole or warn is not None:
                why = f"not a result row ({reason(error)})" if whole else "it was not written to its end"
                refuse(f"line {number}: {why}")
            continue
        if stated:
            check_count()
            first, count, line = len(rows), stated, number
        rows.append(row)
    if unfinished:
        return rows[:first] if len(rows) < first + count else rows
    check_count()
    if not rows:
        refuse(f"which holds no rows. {_ADVICE}")
    return rows


_ADVICE = "Copy it again from where it is whole, or remove it and give the command that wrote it again."


def _row_and_count(text: bytes) -> tuple[Row, int]:
    """The row, and the number of rows that its line states; 0 if it states none."""
    given = parse_json(text)
    count = given.pop("rows", 0) if isinstance(given, dict) else 0
    if type(count) is not int or not 0 <= count < 1 << 63:
        raise ValueError(f"rows: found {short(count)}, expected how many rows there are")
    return Row.from_plain(given), count


def check_rows_file(path: Path, what: str) -> None:
    """Raise UsageError, before hours of work, unless rows can be appended to the file."""
    check_writable_file(path, what)
    if path.is_file() and path.stat().st_size:
        try:
            read_rows(path)
        except ValueError as error:
            raise UsageError(f"{what} {error}") from error
