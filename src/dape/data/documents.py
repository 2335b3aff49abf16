"""Read documents from a list of items, one by one: decoded, cleaned and counted."""

import codecs
import contextlib
import io
import json
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from dape.data.archives import MAX_EXPANSION, Archive, suffixes
from dape.data.formats import CHUNK, HubName, Record, chunks_of, read_hub, read_lines, read_parquet, read_text
from dape.data.long_json import CleanString, LongJSON
from dape.data.sources import Item
from dape.data.text import Collected, Text
from dape.errors import UsageError

_REPLACEMENT = "�".encode()
_EMPTY_LINE = object()


class Position(NamedTuple):
    """Where reading continues."""

    item: int
    record: int
    """Records of the item that have been read."""


BEGINNING = Position(0, 0)


class Document(NamedTuple):
    text: Text
    start: int
    """Bytes of text in all documents before this one."""
    part: str
    """train or validation if the user chose one for its source, else empty."""
    next: Position
    """Where reading continues after it."""


@dataclass
class Tally:
    """Counts of what has been read so far."""

    documents: int = 0
    bytes: int = 0
    """Size of the text as UTF-8."""
    replaced_characters: int = 0
    empty: int = 0
    """Documents without printing characters, which are left out."""
    binary: int = 0
    """Files of folders that are not text, which are left out."""
    consumed: int = 0
    """Bytes of the input files, to show progress."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How documents are read."""

    text_field: str = "text"
    strict: bool = False
    """Refuse broken UTF-8 instead of replacing it."""
    max_expansion: float = MAX_EXPANSION
    """How many times larger than a compressed file its content may be."""
    folder: Path | None = None
    """For temporary files, which hold texts that are too long for memory."""


def read_documents(
    items: Sequence[Item], reading: Reading, tally: Tally, start: Position = BEGINNING
) -> Iterator[Document]:
    """Documents from ``start`` on, read lazily. ``tally`` is updated while they are read."""
    before = sum(item.size for item in items[: start.item])
    for number in range(start.item, len(items)):
        item = items[number]
        skip = start.record if number == start.item else 0
        for index, record in enumerate(_records(item, reading, skip), skip + 1):
            tally.consumed = before + (item.size if item.kind in ("text", "python") else record.consumed)
            text = _text(item, record, reading, tally)
            if text is None:
                continue
            document = Document(text, tally.bytes, item.part, Position(number, index))
            tally.documents += 1
            tally.bytes += text.size
            yield document
        before += item.size


def _records(item: Item, reading: Reading, skip: int) -> Iterator[Record]:
    if item.kind == "hub":
        return read_hub(HubName.parse(item.path), skip, reading.text_field)
    archive = Archive(Path(item.path), reading.max_expansion, reading.folder)
    if item.kind == "jsonl":
        return read_lines(archive, item.name, skip)
    if item.kind == "parquet":
        return read_parquet(archive, item.name, skip, reading.text_field)
    return read_text(archive, item.name, skip)


def _text(item: Item, record: Record, reading: Reading, tally: Tally) -> Text | None:
    """The text of a record; None if it has none, or none that counts."""
    content = record.content
    if item.kind in ("text", "python"):
        assert not isinstance(content, str | None)
        return _text_of_file(item, chunks_of(content), record, reading, tally)
    if item.kind == "jsonl":
        assert not isinstance(content, str | None)
        content = _json_field(content, record, reading, tally)
        if content is _EMPTY_LINE:
            return None
    if content is None:
        tally.empty += 1
        return None
    if isinstance(content, str):
        content = CleanString.of(content, reading.folder)
    if isinstance(content, CleanString):
        return _clean(content, record, reading, tally)
    if not isinstance(content, bytes):
        raise UsageError(
            f"{record.where}: {reading.text_field!r} is {type(content).__name__}, not text. See `text_field`."
        )
    return _collected(_decoded(chunks_of(content), record, reading, tally), reading, tally)


def _text_of_file(item: Item, chunks: Iterator[bytes], record: Record, reading: Reading, tally: Tally) -> Text | None:
    long = not isinstance(record.content, bytes)
    if long and item.kind == "text" and not suffixes(item.path)[1] and (text := _without_copy(Path(item.path))):
        return text
    first = next(chunks, b"")
    encoding = _python_encoding(first) if item.kind == "python" else "utf-8"
    try:
        return _collected(
            _decoded(_without_zeros(chain([first], chunks)), record, reading, tally, encoding), reading, tally
        )
    except _ZeroByte as zero:
        if item.named:
            utf16 = first[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
            advice = "It seems to be UTF-16: convert it to UTF-8 first (iconv)." if utf16 else "Only text is prepared."
            raise UsageError(f"{item.name}: is a binary file (a zero byte at {zero.at}). {advice}") from None
    tally.binary += 1
    return None


def _without_copy(path: Path) -> Text | None:
    """The text of a long file, read in place; None if it must be cleaned or is not plain UTF-8."""
    file, decoder = path.open("rb"), codecs.getincrementaldecoder("utf-8")()
    size, blank = 0, True
    try:
        while chunk := file.read(CHUNK):
            if b"\0" in chunk or (size == 0 and chunk.startswith(codecs.BOM_UTF8)):
                raise ValueError
            text, size = decoder.decode(chunk), size + len(chunk)
            blank = blank and not text.strip()
        decoder.decode(b"", final=True)
    except ValueError:  # UnicodeDecodeError is one
        blank = True
    if blank:
        file.close()
        return None
    return Text.of_file(file, size)


class _ZeroByte(Exception):
    def __init__(self, at: int) -> None:
        self.at = at


def _without_zeros(chunks: Iterable[bytes]) -> Iterator[bytes]:
    before = 0
    for chunk in chunks:
        if b"\0" in chunk:
            raise _ZeroByte(before + chunk.index(0))
        yield chunk
        before += len(chunk)


def _collected(pieces: Iterable[str], reading: Reading, tally: Tally) -> Text | None:
    made = Collected(reading.folder)
    for piece in pieces:
        made.add(piece)
    if made.blank:
        tally.empty += 1
        return None
    return made.text()


def _decoded(
    chunks: Iterator[bytes], record: Record, reading: Reading, tally: Tally, encoding: str = "utf-8"
) -> Iterator[str]:
    """Decode chunks of bytes; characters across a border are whole. Replaced characters are counted at the end."""
    decoder = codecs.getincrementaldecoder(encoding)("strict" if reading.strict else "replace")
    at, replaced, tail = record.offset or 0, 0, b""
    for chunk in chain(chunks, [None]):  # None: the end
        data = chunk or b""
        if chunk and at == record.offset == 0 and encoding == "utf-8" and data.startswith(codecs.BOM_UTF8):
            at, data = 3, data[3:]
        try:
            text = decoder.decode(data, final=chunk is None)
        except UnicodeDecodeError as error:
            for _ in chunks:  # a zero byte later in the file is reported instead: then it is not text at all
                pass
            at += error.start - (len(error.object) - len(data))
            raise ValueError(
                f"{record.where}: broken {encoding.upper()} at byte {at} ({error.reason}). "
                f"Without `strict` such bytes are replaced by U+FFFD and counted."
            ) from None
        if not text.isascii():
            already = (tail + data).count(_REPLACEMENT) if encoding == "utf-8" else 0
            replaced += text.count("�") - already
        at, tail = at + len(data), (tail + data)[-2:]
        yield text
    tally.replaced_characters += replaced


def _python_encoding(content: bytes) -> str:
    """The encoding that Python itself would use: that of a comment in the first two lines, otherwise UTF-8."""
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(content).readline)[0]
    except SyntaxError:  # an unknown encoding, or not UTF-8
        return "utf-8"
    return "utf-8" if encoding == "utf-8-sig" else encoding


def _json_field(content: bytes | Iterator[bytes], record: Record, reading: Reading, tally: Tally) -> Any:
    """The text field of a JSON line; a long string is a CleanString."""
    if isinstance(content, bytes) and not content.strip():
        return _EMPTY_LINE
    pieces = _decoded(chunks_of(content), record, reading, tally)
    if isinstance(content, bytes):
        line, long = "".join(pieces), {}
        with _named(record):
            given = json.loads(line)
    else:
        reader = LongJSON(reading.folder)
        for piece in pieces:
            with _named(record):
                reader.feed(piece)
        if reader.blank:
            return _EMPTY_LINE
        with _named(record):
            given, long = reader.value(), reader.long
    value = _field(given, record.where, reading.text_field)
    return long.get(value, value) if isinstance(value, str) else value


@contextlib.contextmanager
def _named(record: Record) -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{record.where}: not JSON ({error})") from error


def _field(content: Any, where: str, name: str) -> Any:
    if not isinstance(content, dict):
        raise ValueError(f"{where}: not a JSON object but {type(content).__name__}")
    if name not in content:
        has = ", ".join(map(repr, list(content)[:10])) or "no fields"
        raise UsageError(f"{where}: has no field {name!r}; it has {has}. Choose with `text_field`.")
    return content[name]


def _clean(string: CleanString, record: Record, reading: Reading, tally: Tally) -> Text | None:
    if string.surrogates and reading.strict:
        raise ValueError(f"{record.where}: half of a UTF-16 character, which has no UTF-8 form. See `strict`.")
    tally.replaced_characters += string.surrogates
    if string.blank:
        tally.empty += 1
        return None
    return string.text
