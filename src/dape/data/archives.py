"""Read compressed files with bounded memory, and with a limit on the size of the content."""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, BinaryIO, cast

from dape.errors import UsageError
from dape.extras import install_command

COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")
MAX_EXPANSION = 200.0
"""Greatest size of the content, relative to the file. Text is compressed to about a tenth, logs to a hundredth, files
that are made to fill a disk to a thousandth and less."""
ALWAYS_ALLOWED = 64 << 20
"""Bytes of content that are allowed in any file."""
XZ_MEMORY = 128 << 20
"""Memory for decompression, more than `xz -9` needs. The header of a file may ask for gigabytes."""
XZ_BEGIN = b"\xfd7zXZ\0"
_BLOCK = 1 << 18


def suffixes(path: str | PurePath) -> tuple[str, str]:
    """Suffix of the format and of the compression: ("book.txt.gz") -> (".txt", ".gz")."""
    path = PurePath(path)
    compression = path.suffix.lower() if path.suffix.lower() in COMPRESSIONS else ""
    return (PurePath(path.stem) if compression else path).suffix.lower(), compression


@dataclass(frozen=True)
class Archive:
    """A file that may be compressed, and the limits for reading it."""

    path: Path
    max_expansion: float = MAX_EXPANSION
    """How many times larger than the file its content may be."""
    folder: Path | None = None
    """For temporary files."""

    @contextlib.contextmanager
    def opened(self) -> Iterator[tuple[BinaryIO, BinaryIO]]:
        """The decompressed file, and the file itself."""
        with self.path.open("rb") as raw:
            if compression := suffixes(self.path)[1]:
                expanded = _Expanded(raw, compression, self)
                yield cast(BinaryIO, io.BufferedReader(expanded, _BLOCK)), raw
            else:
                yield raw, raw


class _Expanded(io.RawIOBase):
    """The content of a compressed file, up to the limit. Errors of the libraries become ValueErrors with the path."""

    def __init__(self, raw: BinaryIO, compression: str, archive: Archive) -> None:
        self._path, self._compression, self._factor = archive.path, compression, archive.max_expansion
        self._stream, own_errors = _decompress(raw, compression, archive.path)
        self._broken = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, *own_errors)
        self._size, self._count = os.fstat(raw.fileno()).st_size, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            size = self._stream.readinto(buffer)
        except self._broken as error:
            raise ValueError(f"{self._path}: broken {self._compression} file, or cut off ({error})") from error
        except OSError as error:
            if error.errno is not None or self._compression != ".bz2":  # bz2 reports damage as OSError without number
                raise
            raise ValueError(f"{self._path}: broken {self._compression} file ({error})") from error
        self._count += size
        if self._count > max(self._factor * self._size, ALWAYS_ALLOWED):
            raise UsageError(
                f"{self._path}: {self._size:,} bytes that hold more than {self._count - size:,}, over "
                f"{self._factor:g} times as much. Text rarely does; if this is meant, allow more with `max_expansion`."
            )
        return size


def _decompress(raw: BinaryIO, compression: str, path: Path) -> tuple[Any, tuple[type[Exception], ...]]:
    """An object with ``readinto``, and the errors that its library has of its own."""
    if compression == ".xz":
        return _XzReader(raw), ()
    if compression != ".zst":
        return {".gz": gzip.open, ".bz2": bz2.open}[compression](raw, "rb"), ()
    try:
        import zstandard
    except ImportError:
        raise UsageError(f"{path}: needs the library zstandard; {install_command('data')}") from None
    return _ZstdReader(raw), (zstandard.ZstdError,)


class _ZstdReader:
    """Reads all frames of a .zst file. The library's own reader does not notice that a file was cut off."""

    def __init__(self, raw: BinaryIO) -> None:
        import zstandard

        self._raw, self._decompressor = raw, zstandard.ZstdDecompressor()
        self._frame, self._input, self._output = None, b"", memoryview(b"")

    def readinto(self, buffer: Any) -> int:
        while not self._output:
            data = self._input or self._raw.read(1 << 10)  # one KiB can expand to 32 MB
            if not data:
                if self._frame is not None:
                    raise EOFError("the last frame is not complete")
                return 0
            self._frame = self._frame or self._decompressor.decompressobj()
            self._output, self._input = memoryview(self._frame.decompress(data)), b""
            if self._frame.eof:
                self._input, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._output))
        buffer[:size], self._output = self._output[:size], self._output[size:]
        return size


class _XzReader:
    """Reads all streams of an .xz file with a limit on memory, which the library's own reader does not have."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw, self._stream, self._ended = raw, lzma.LZMADecompressor(memlimit=XZ_MEMORY), False

    def readinto(self, buffer: Any) -> int:
        while not self._ended:
            if self._stream.eof:
                self._begin(self._after_zeros())
                continue
            data = self._raw.read(_BLOCK) if self._stream.needs_input else b""
            if self._stream.needs_input and not data:
                raise EOFError("the last stream is not complete")
            if output := self._stream.decompress(data, len(buffer)):
                buffer[: len(output)] = output
                return len(output)
        return 0

    def _begin(self, data: bytes) -> None:
        """Begin another stream with ``data``; if no stream begins there, ignore the rest of the file."""
        self._stream = lzma.LZMADecompressor(memlimit=XZ_MEMORY)
        self._ended = not data.startswith(XZ_BEGIN[: len(data)]) or not data
        if not self._ended:
            self._stream.decompress(data, 0)

    def _after_zeros(self) -> bytes:
        """The data after a stream, without the zeros that may pad it."""
        data = self._stream.unused_data.lstrip(b"\0")
        while not data and (block := self._raw.read(_BLOCK)):
            data = block.lstrip(b"\0")
        return data
