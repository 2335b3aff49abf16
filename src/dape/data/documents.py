"""Documents, one after the other, from a list of items: decoded, cleaned and counted."""

import hashlib
import io
import json
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dape.data.formats import HubName, Record, read_hub, read_lines, read_parquet, read_text
from dape.data.sources import Item
from dape.errors import UsageError

_SURROGATES = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "�".encode()


class Position(NamedTuple):
    """Where reading goes on: this item, after so many of its records."""

    item: int
    record: int


BEGINNING = Position(0, 0)


class Document(NamedTuple):
    text: str
    content: bytes
    """The same, as UTF-8."""
    start: int
    """Bytes of text in all documents before this one."""
    part: str
    """train or validation if its source was named for one of them."""
    next: Position

    def digest(self) -> bytes:
        return hashlib.sha256(self.content).digest()


@dataclass
class Tally:
    """What has been read so far."""

    documents: int = 0
    bytes: int = 0
    """Of text, as UTF-8."""
    replaced_characters: int = 0
    empty: int = 0
    """Documents without a single printing character, left out."""
    binary: int = 0
    """Files of folders that are no text, left out."""
    consumed: int = 0
    """Bytes of the input files, to show progress."""

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How documents are read."""

    text_field: str = "text"
    strict: bool = False
    """Refuse broken UTF-8 instead of replacing it."""


def read_documents(
    items: Sequence[Item], reading: Reading, tally: Tally, start: Position = BEGINNING
) -> Iterator[Document]:
    """Documents from ``start`` on, read when they are asked for. ``tally`` counts along."""
    before = sum(item.size for item in items[: start.item])
    for number in range(start.item, len(items)):
        item = items[number]
        skip = start.record if number == start.item else 0
        for index, record in enumerate(_records(item, reading, skip), skip + 1):
            tally.consumed = before + record.consumed
            text = _text(item, record, reading, tally)
            if text is None:
                continue
            if not text.strip():
                tally.empty += 1
                continue
            content = text.encode("utf-8")
            document = Document(text, content, tally.bytes, item.part, Position(number, index))
            tally.documents += 1
            tally.bytes += len(content)
            yield document
        before += item.size


def _records(item: Item, reading: Reading, skip: int) -> Iterator[Record]:
    if item.kind == "jsonl":
        return read_lines(Path(item.path), item.name, skip)
    if item.kind == "parquet":
        return read_parquet(Path(item.path), item.name, skip, reading.text_field)
    if item.kind == "hub":
        return read_hub(HubName.parse(item.path), skip, reading.text_field)
    return read_text(Path(item.path), item.name, skip)


def _text(item: Item, record: Record, reading: Reading, tally: Tally) -> str | None:
    """The text of a record, or None if there is none to count."""
    content = record.content
    if item.kind in ("text", "python"):
        assert isinstance(content, bytes)
        if b"\0" in content:
            return _refuse_binary(item, content, tally)
        return _decode(content, record, reading, tally, _python_encoding(content) if item.kind == "python" else "utf-8")
    if item.kind == "jsonl":
        assert isinstance(content, bytes)
        if not content.strip():
            return None
        content = _json_field(_decode(content, record, reading, tally), record.where, reading.text_field)
    if content is None:
        tally.empty += 1
        return None
    if isinstance(content, bytes):
        return _decode(content, record, reading, tally)
    if not isinstance(content, str):
        raise UsageError(
            f"{record.where}: {reading.text_field!r} is {type(content).__name__}, not text. See --text-field."
        )
    return _without_surrogates(content, record, reading, tally)


def _refuse_binary(item: Item, content: bytes, tally: Tally) -> None:
    if item.named:
        utf16 = content[:2] in (b"\xff\xfe", b"\xfe\xff")
        advice = "It seems to be UTF-16: convert it to UTF-8 first (iconv)." if utf16 else "Only text can be prepared."
        raise UsageError(f"{item.name}: is a binary file (a zero byte at {content.index(0)}). {advice}")
    tally.binary += 1


def _decode(content: bytes, record: Record, reading: Reading, tally: Tally, encoding: str = "utf-8") -> str:
    bom = 3 if content.startswith(b"\xef\xbb\xbf") and record.offset == 0 and encoding == "utf-8" else 0
    try:
        return content[bom:].decode(encoding)
    except UnicodeDecodeError as error:
        if reading.strict:
            at = (record.offset or 0) + bom + error.start
            raise ValueError(
                f"{record.where}: broken {encoding.upper()} at byte {at} ({error.reason}). "
                f"Without --strict such bytes are replaced by U+FFFD and counted."
            ) from None
    text = content[bom:].decode(encoding, errors="replace")
    already = content.count(_REPLACEMENT) if encoding == "utf-8" else 0
    tally.replaced_characters += text.count("�") - already
    return text


def _python_encoding(content: bytes) -> str:
    """As Python itself finds it out: a comment in the first two lines, otherwise UTF-8."""
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(content).readline)[0]
    except SyntaxError:  # an unknown encoding, or not UTF-8
        return "utf-8"
    return "utf-8" if encoding == "utf-8-sig" else encoding


def _json_field(line: str, where: str, name: str) -> Any:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{where}: not a JSON object but {type(content).__name__}")
    if name not in content:
        has = ", ".join(map(repr, list(content)[:10])) or "no fields"
        raise UsageError(f"{where}: has no field {name!r}; it has {has}. Choose with --text-field.")
    return content[name]


def _without_surrogates(text: str, record: Record, reading: Reading, tally: Tally) -> str:
    """JSON can write half of a character (\\ud83d), which no UTF-8 can."""
    clean, count = _SURROGATES.subn("�", text)
    if count and reading.strict:
        raise ValueError(f"{record.where}: half of a UTF-16 character, which has no UTF-8 form. See --strict.")
    tally.replaced_characters += count
    return clean
