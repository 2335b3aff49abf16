"""The one type of result row, and JSON Lines files of it that are only ever appended to. No torch here."""

import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO


@dataclass(frozen=True, kw_only=True)
class Row:
    run: str
    """Which training run: unique within a file, for instance dape-kerple-seed0."""
    method: str
    """Positional encoding, spelled as in `dape list`."""
    seed: int
    """Seed of weights and data order."""
    train_length: int
    length: int
    """Tokens of context; the value was measured at this length."""
    metric: str
    """perplexity, nll (nats per token), accuracy (0 to 1), ..."""
    value: float
    scored_tokens: int
    protocol: str
    """How tokens were chosen: last_k, full, nonoverlap, per_position, mqar, passkey, ..."""
    data_hash: str
    """Hash of the text that was scored."""
    variant: str = ""
    """Options of the method, where runs of one file differ in them: hidden=4; as in the paper's tables."""
    k: int | None = None
    """Scored tokens per window, if the protocol limits them."""
    windows: int | None = None
    """Number of windows, the same at every length."""
    mode: str = ""
    """packed (windows run across documents) or same_document."""
    step: int | None = None
    """Optimizer steps the model was trained for."""
    tokenizer: str = ""
    window_nll: tuple[float, ...] = ()
    """Mean nats per scored token of each window, in the order of the anchors: windows pair up between methods."""
    note: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    """Anything else worth keeping: position bucket, depth, precision, threads, versions, commit."""

    @property
    def label(self) -> str:
        """The method, with its variant if it has one."""
        return f"{self.method} ({self.variant})" if self.variant else self.method

    def as_json(self) -> str:
        """One line. Fields left at their default are left out; JSON has no infinity, so it is written as text."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        needed = {name: value for name, value in given.items() if name in _REQUIRED or value not in (None, "", (), {})}
        needed["value"] = _as_text_if_infinite(self.value)
        if self.window_nll:
            needed["window_nll"] = [_as_text_if_infinite(nats) for nats in self.window_nll]
        return json.dumps(needed)

    @classmethod
    def from_json(cls, line: str) -> "Row":
        given = json.loads(line)
        if not isinstance(given, dict):
            raise ValueError("not a JSON object")
        known = {f.name for f in fields(cls)}
        missing = [name for name in _REQUIRED if name not in given]
        if missing:
            raise ValueError(f"no {', '.join(missing)}")
        extra = {**given.get("extra", {}), **{name: v for name, v in given.items() if name not in known}}
        values = {name: v for name, v in given.items() if name in known}
        windows = tuple(float(nats) for nats in given.get("window_nll", ()))
        return cls(**{**values, "value": float(given["value"]), "window_nll": windows, "extra": extra})

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


_REQUIRED = (
    "run",
    "method",
    "seed",
    "train_length",
    "length",
    "metric",
    "value",
    "scored_tokens",
    "protocol",
    "data_hash",
)


def _as_text_if_infinite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Add rows at the end in one write, in place of a last line that a crash has cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(row.as_json() + "\n" for row in rows)
    with path.open("ab+") as file:
        end = _end_of_whole_lines(file)
        file.seek(end)
        if _is_row(file.read()):  # only its line break is missing, and read_rows has counted it
            text = "\n" + text
        else:
            file.truncate(end)
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def _is_row(line: bytes) -> bool:
    try:
        Row.from_json(line.decode())
    except (ValueError, TypeError):
        return False
    return True


def _end_of_whole_lines(file: BinaryIO) -> int:
    """Where the last line that is complete ends, read from the back."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - 65536)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def read_rows(path: Path) -> list[Row]:
    """All rows of a file. A last line that a crash has cut off is left out; any other bad line is refused."""
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(Row.from_json(line))
        except (ValueError, TypeError) as error:
            if number == len(lines):
                break
            raise ValueError(f"{path}, line {number}: not a result row ({error})") from error
    return rows
