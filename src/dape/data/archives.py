"""Files without their compression: never more than was asked for in memory, and never more than a limit in all."""

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
"""Text is compressed to a tenth or so, logs to a hundredth; what is made to fill a disk, to a thousandth and less."""
ALWAYS_ALLOWED = 64 << 20
"""Bytes that any file may hold."""
XZ_MEMORY = 128 << 20
"""More than `xz -9` needs. A file may say that it needs gigabytes."""
XZ_BEGIN = b"\xfd7zXZ\0"
_BLOCK = 1 << 18


def suffixes(path: str | PurePath) -> tuple[str, str]:
    """Suffix of the format and of the compression: ("book.txt.gz") -> (".txt", ".gz")."""
    path = PurePath(path)
    compression = path.suffix.lower() if path.suffix.lower() in COMPRESSIONS else ""
    return (PurePath(path.stem) if compression else path).suffix.lower(), compression


@dataclass(frozen=True)
class Archive:
    """A file, compressed or not, and how to read it."""

    path: Path
    max_expansion: float = MAX_EXPANSION
    """How many times larger than the file its content may be."""
    folder: Path | None = None
    """For temporary files."""

    @contextlib.contextmanager
    def opened(self) -> Iterator[tuple[BinaryIO, BinaryIO]]:
        """The file without its compression, and the file itself."""
        with self.path.open("rb") as raw:
            if compression := suffixes(self.path)[1]:
                expanded = _Expanded(raw, compression, self)
                yield cast(BinaryIO, io.BufferedReader(expanded, _BLOCK)), raw
            else:
                yield raw, raw


class _Expanded(io.RawIOBase):
    """The content of a compressed file, up to the limit. What goes wrong in a library is said in our words."""

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
    """Something with ``readinto``, and the errors it has of its own."""
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
    """All frames of a .zst file. The library's own reader takes a file that was cut off for a complete one."""

    def __init__(self, raw: BinaryIO) -> None:
        import zstandard

        self._raw, self._decompressor = raw, zstandard.ZstdDecompressor()
        self._frame, self._input, self._output = None, b"", memoryview(b"")

    def readinto(self, buffer: Any) -> int:
        while not self._output:
            data = self._input or self._raw.read(1 << 10)  # which can become 32 MB
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
    """All streams of an .xz file, with a limit on memory, which the library's own reader has not."""

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
        """Another stream. What follows the last one and is none is left alone."""
        self._stream = lzma.LZMADecompressor(memlimit=XZ_MEMORY)
        self._ended = not data.startswith(XZ_BEGIN[: len(data)]) or not data
        if not self._ended:
            self._stream.decompress(data, 0)

    def _after_zeros(self) -> bytes:
        """Streams may be filled up with them."""
        data = self._stream.unused_data.lstrip(b"\0")
        while not data and (block := self._raw.read(_BLOCK)):
            data = block.lstrip(b"\0")
        return data
