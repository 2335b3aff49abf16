"""Records of one file: the whole of a text file, the lines of JSON Lines, the rows of Parquet or of a hub data set.

Every reader takes the number of records to skip, so that an interrupted preparation goes on without redoing work.
"""

import bz2
import contextlib
import gzip
import io
import lzma
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any, BinaryIO, NamedTuple, cast

from dape.errors import UsageError

COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")
FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
# Inside folders only files with these names are taken; a file that is named itself may be called anything.
KNOWN = re.compile(
    r"\.(txt|text|md|markdown|rst|tex|org|adoc"
    r"|py|pyi|c|h|cc|cpp|hpp|cu|java|js|ts|go|rs|rb|jl|r|hs|ml|lean|sh|sql|lua|scala"
    r"|jsonl|ndjson|parquet)"
)


class Record(NamedTuple):
    content: bytes | str | None
    where: str
    """For messages: file, and line or row."""
    offset: int | None = None
    """Where the content begins in the file, before compression; None if files of this format have no such place."""
    consumed: int = 0
    """Bytes of the file read so far, to show progress."""


def suffixes(path: str | PurePath) -> tuple[str, str]:
    """Suffix of the format and of the compression: ("book.txt.gz") -> (".txt", ".gz")."""
    path = PurePath(path)
    compression = path.suffix.lower() if path.suffix.lower() in COMPRESSIONS else ""
    return (PurePath(path.stem) if compression else path).suffix.lower(), compression


def kind_of(path: str | PurePath) -> str:
    return FORMATS.get(suffixes(path)[0], "text")


def is_known(path: str | PurePath) -> bool:
    return KNOWN.fullmatch(suffixes(path)[0]) is not None


# Compression ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """The file without its compression, and the file itself."""
    broken = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)
    with path.open("rb") as raw:
        compression = suffixes(path)[1]
        if not compression:
            yield raw, raw
            return
        stream, own_errors = _decompress(raw, compression, path)
        try:
            yield stream, raw
        except (*broken, *own_errors) as error:
            raise ValueError(f"{path}: broken {compression} file, or cut off ({error})") from error
        except OSError as error:
            if error.errno is not None or compression != ".bz2":  # bz2 reports damage as OSError without number
                raise
            raise ValueError(f"{path}: broken {compression} file ({error})") from error


def _decompress(raw: BinaryIO, compression: str, path: Path) -> tuple[BinaryIO, tuple[type[Exception], ...]]:
    if compression == ".zst":
        try:
            import zstandard
        except ImportError:
            raise UsageError(f"{path}: needs the library zstandard; pip install 'dape[data]'") from None
        return cast(BinaryIO, io.BufferedReader(_ZstdReader(raw))), (zstandard.ZstdError,)
    open_ = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}[compression]
    return cast(BinaryIO, open_(raw, "rb")), ()


class _ZstdReader(io.RawIOBase):
    """All frames of a .zst file. The library's own reader takes a file that was cut off for a complete one."""

    def __init__(self, raw: BinaryIO) -> None:
        import zstandard

        self._raw, self._decompressor = raw, zstandard.ZstdDecompressor()
        self._frame, self._input, self._output = None, b"", b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._output:
            data = self._input or self._raw.read(1 << 16)
            if not data:
                if self._frame is not None:
                    raise EOFError("the last frame is not complete")
                return 0
            self._frame = self._frame or self._decompressor.decompressobj()
            self._output, self._input = self._frame.decompress(data), b""
            if self._frame.eof:
                self._input, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._output))
        buffer[:size], self._output = self._output[:size], self._output[size:]
        return size


# Readers -------------------------------------------------------------------------------------------------------------


def read_text(path: Path, name: str, skip: int) -> Iterator[Record]:
    if skip:
        return
    with opened(path) as (stream, raw):
        yield Record(stream.read(), name, 0, raw.tell())


def read_lines(path: Path, name: str, skip: int) -> Iterator[Record]:
    offset = 0
    with opened(path) as (stream, raw):
        for number, line in enumerate(stream, 1):
            if number > skip:
                yield Record(line, f"{name}, line {number}", offset, raw.tell())
            offset += len(line)


def read_parquet(path: Path, name: str, skip: int, column: str) -> Iterator[Record]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UsageError(f"{name}: needs the library pyarrow; pip install 'dape[data]'") from None
    with _seekable(path) as stream:
        size = path.stat().st_size
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
def _seekable(path: Path) -> Iterator[BinaryIO]:
    """Parquet is read from its end, which a compressed stream cannot do."""
    with opened(path) as (stream, raw):
        if stream is raw:
            yield raw
            return
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(stream, copy)
            copy.seek(0)
            yield cast(BinaryIO, copy)


def _check_column(schema: Any, column: str, name: str) -> None:
    if column not in schema.names:
        raise UsageError(f"{name}: has no column {column!r}; it has {_listed(schema.names)}. Choose with --text-field.")
    kind = schema.field(column).type
    kind = kind.value_type if str(kind).startswith("dictionary") else kind
    if str(kind) not in ("string", "large_string", "string_view", "binary", "large_binary"):
        raise UsageError(f"{name}: column {column!r} holds {kind}, not text. Choose another with --text-field.")


def _parquet_values(file: Any, column: str, skip: int) -> Iterator[tuple[int, bytes | None]]:
    """Numbered from 1. As bytes: text in Parquet is not guaranteed to be UTF-8, and is checked as any other."""
    import pyarrow

    number = 0
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if number + rows <= skip:
            number += rows
            continue
        for batch in file.iter_batches(64, row_groups=[group], columns=[column]):
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
        except Exception as error:  # of the network, the hub, or any of the formats behind it
            raise ValueError(f"{spec}: reading row {number + 1} failed ({_first_line(error)})") from error
        if row is None:
            return
        number += 1
        if column not in row:
            raise UsageError(f"{spec}: has no column {column!r}; it has {_listed(row)}. Choose with --text-field.")
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
        raise UsageError(f"{spec}: needs the library datasets; pip install 'dape[hub]'") from None
    try:
        return datasets.load_dataset(spec.name, spec.config, split=spec.split, streaming=True)
    except Exception as error:  # it raises whatever its many parts raise
        message = f"{spec}: cannot be opened ({_first_line(error)}). Check name, configuration, split and the network; "
        raise ValueError(message + "without a network, pass files that are already here.") from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _listed(names: Any) -> str:
    return ", ".join(map(repr, list(names)[:10]))
