"""Read the records of one file: a whole text file, lines of JSON Lines, rows of Parquet or of a data set of the hub.

Every reader takes the number of records to skip, so that an interrupted preparation continues without repeating work.
"""

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, BinaryIO, NamedTuple, cast

from dape.data.archives import Archive, suffixes
from dape.data.text import LONG
from dape.errors import UsageError
from dape.extras import install_command

CHUNK = 1 << 20
"""Bytes of a long document that are read at once."""

FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
# In folders, only files with these suffixes are read; a file that the user names may have any.
KNOWN = re.compile(
    r"\.(txt|text|md|markdown|rst|tex|org|adoc"
    r"|py|pyi|c|h|cc|cpp|hpp|cu|java|js|ts|go|rs|rb|jl|r|hs|ml|lean|sh|sql|lua|scala"
    r"|jsonl|ndjson|parquet)"
)


class Record(NamedTuple):
    content: bytes | Iterator[bytes] | str | None
    """An iterator over content that is too long for memory."""
    where: str
    """For messages: file, and line or row."""
    offset: int | None = None
    """First byte of the content in the uncompressed file; None for formats without such a position."""
    consumed: int = 0
    """Bytes of the file read so far, to show progress."""


def kind_of(path: str | PurePath) -> str:
    return FORMATS.get(suffixes(path)[0], "text")


def is_known(path: str | PurePath) -> bool:
    return KNOWN.fullmatch(suffixes(path)[0]) is not None


# Readers -------------------------------------------------------------------------------------------------------------


def chunks_of(content: bytes | Iterator[bytes]) -> Iterator[bytes]:
    if isinstance(content, bytes):
        return (content[at : at + LONG] for at in range(0, len(content), LONG))
    return content


def read_text(archive: Archive, name: str, skip: int) -> Iterator[Record]:
    if skip:
        return
    with archive.opened() as (stream, raw):
        content = stream.read(LONG)
        if len(content) == LONG:
            content = chain([content], iter(partial(stream.read, CHUNK), b""))
        yield Record(content, name, 0, raw.tell())


def read_lines(archive: Archive, name: str, skip: int) -> Iterator[Record]:
    offset = 0
    with archive.opened() as (stream, raw):
        for number, line in enumerate(iter(partial(stream.readline, LONG), b""), 1):
            rest = None if len(line) < LONG or line.endswith(b"\n") else _Rest(stream)
            if number > skip:
                content = line if rest is None else chain([line], rest)
                yield Record(content, f"{name}, line {number}", offset, raw.tell())
            offset += len(line) + (rest.size() if rest else 0)


class _Rest:
    """The rest of a line, in chunks."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._size, self._ended = stream, 0, False

    def __iter__(self) -> "_Rest":
        return self

    def __next__(self) -> bytes:
        chunk = b"" if self._ended else self._stream.readline(CHUNK)
        self._ended = not chunk or chunk.endswith(b"\n")
        self._size += len(chunk)
        if not chunk:
            raise StopIteration
        return chunk

    def size(self) -> int:
        """The size of the whole rest, which is read to its end."""
        for _ in self:
            pass
        return self._size


def read_parquet(archive: Archive, name: str, skip: int, column: str) -> Iterator[Record]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UsageError(f"{name}: needs the library pyarrow; {install_command('data')}") from None
    with _seekable(archive) as stream:
        size = archive.path.stat().st_size
        try:
            file = parquet.ParquetFile(stream)
            _check_column(file.schema_arrow, column, name)
            for number, value in _parquet_values(file, column, skip):
                yield Record(value, f"{name}, row {number}", None, size * number // file.metadata.num_rows)
        except (pyarrow.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise ValueError(f"{name}: broken parquet file ({str(error).splitlines()[0]})") from error


@contextlib.contextmanager
def _seekable(archive: Archive) -> Iterator[BinaryIO]:
    """A file to seek in: Parquet is read from its end. A compressed file is expanded into a temporary one."""
    with archive.opened() as (stream, raw):
        if stream is raw:
            yield raw
            return
        with tempfile.TemporaryFile(dir=archive.folder) as copy:
            shutil.copyfileobj(stream, copy)
            copy.seek(0)
            yield cast(BinaryIO, copy)


def _check_column(schema: Any, column: str, name: str) -> None:
    if column not in schema.names:
        raise UsageError(f"{name}: has no column {column!r}; it has {_listed(schema.names)}. Choose with `text_field`.")
    kind = schema.field(column).type
    kind = kind.value_type if str(kind).startswith("dictionary") else kind
    if str(kind) not in ("string", "large_string", "string_view", "binary", "large_binary"):
        raise UsageError(f"{name}: column {column!r} holds {kind}, not text. Choose another with `text_field`.")


def _parquet_values(file: Any, column: str, skip: int) -> Iterator[tuple[int, bytes | None]]:
    """Values with their row numbers, from 1. As bytes: Parquet does not guarantee UTF-8, which is checked later."""
    import pyarrow

    number = 0
    for group in range(file.num_row_groups):
        described = file.metadata.row_group(group)
        if number + described.num_rows <= skip:
            number += described.num_rows
            continue
        # Rows at a time that take no more memory than a long document, if all are about equally long.
        together = LONG * described.num_rows // max(described.total_byte_size, 1)
        for batch in file.iter_batches(min(max(together, 1), 64), row_groups=[group], columns=[column]):
            values = batch.column(0)
            values = values.dictionary_decode() if isinstance(values, pyarrow.DictionaryArray) else values
            for value in values.cast(pyarrow.large_binary()):
                number += 1
                if number > skip:
                    yield number, value.as_py()


def read_hub(spec: "HubName", skip: int, column: str) -> Iterator[Record]:
    rows = iter(open_hub(spec).skip(skip))
    number = skip
    while True:
        try:
            row = next(rows, None)
        except Exception as error:  # of the network, of the hub, or of a format
            raise ValueError(f"{spec}: reading row {number + 1} failed ({_first_line(error)})") from error
        if row is None:
            return
        number += 1
        if column not in row:
            raise UsageError(f"{spec}: has no column {column!r}; it has {_listed(row)}. Choose with `text_field`.")
        yield Record(row[column], f"{spec}, row {number}")


# The Hugging Face hub ------------------------------------------------------------------------------------------------


class HubName(NamedTuple):
    """``hf:NAME``, ``hf:OWNER/NAME``, ``hf:OWNER/NAME/CONFIG``, each with ``:SPLIT``; or ``hf:`` and a local folder."""

    name: str
    config: str | None
    split: str

    @classmethod
    def parse(cls, spec: str) -> "HubName":
        name, _, split = spec.removeprefix("hf:").partition(":")
        if name.startswith(("/", "./", "../", "~")):
            return cls(str(Path(name).expanduser().resolve()), None, split or "train")
        words = name.split("/")
        if not all(words) or len(words) > 3:
            raise UsageError(f"{spec}: not hf:NAME, hf:OWNER/NAME or hf:OWNER/NAME/CONFIG, with or without :SPLIT")
        return cls("/".join(words[:2]), words[2] if len(words) == 3 else None, split or "train")

    def __str__(self) -> str:
        return f"hf:{'/'.join(filter(None, (self.name, self.config)))}:{self.split}"


def open_hub(spec: HubName) -> Any:
    """A data set that is downloaded while it is read."""
    try:
        import datasets
    except ImportError:
        raise UsageError(f"{spec}: needs the library datasets; {install_command('hub')}") from None
    try:
        return datasets.load_dataset(spec.name, spec.config, split=spec.split, streaming=True)
    except Exception as error:  # the library raises errors of many others
        message = f"{spec}: cannot be opened ({_first_line(error)}). Check name, configuration, split and the network; "
        raise ValueError(message + "without a network, pass files that are already here.") from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _listed(names: Any) -> str:
    return ", ".join(map(repr, list(names)[:10]))
