"""The text of a document: in memory if it is short, otherwise in a file that is read in pieces."""

import codecs
import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

LONG = 4 << 20
"""Longer texts, in bytes, are not held in memory."""
PIECE = 1 << 16
"""Bytes that are decoded at once."""


class _Open:
    """A file that is closed with the last text that uses it. A nameless temporary file is then removed."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def __del__(self) -> None:
        self.file.close()

    def __getitem__(self, span: slice) -> bytes:
        self.file.seek(span.start)
        return self.file.read(max(span.stop - span.start, 0))


class Text:
    """A range of a source of UTF-8, from one character to another."""

    def __init__(self, source: bytes | _Open, begin: int, end: int) -> None:
        self._source, self._begin, self._end = source, begin, end
        self._digest: bytes | None = None

    @classmethod
    def of(cls, text: str) -> "Text":
        content = text.encode("utf-8")
        return cls(content, 0, len(content))

    @classmethod
    def of_file(cls, file: BinaryIO, size: int) -> "Text":
        """The whole of a file, which is closed with the last text that uses it."""
        return cls(_Open(file), 0, size)

    @property
    def size(self) -> int:
        """In bytes."""
        return self._end - self._begin

    def read(self, begin: int, end: int) -> bytes:
        """The bytes from ``begin`` to ``end``; fewer if the text ends before."""
        begin, end = self._begin + max(begin, 0), min(self._begin + end, self._end)
        return self._source[begin:end]

    def digest(self) -> bytes:
        """sha256."""
        if self._digest is None:
            seen = hashlib.sha256()
            for at in range(0, self.size, LONG):
                seen.update(self.read(at, at + LONG))
            self._digest = seen.digest()
        return self._digest

    def pieces(self) -> Iterator[str]:
        """The text in strings of bounded size."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        for at in range(0, self.size, PIECE):
            yield decoder.decode(self.read(at, at + PIECE))

    def __str__(self) -> str:
        return "".join(self.pieces())

    def cut(self, at: int) -> "tuple[Text, Text]":
        """The texts before and after byte ``at``, where a character must begin."""
        middle = self._begin + at
        return Text(self._source, self._begin, middle), Text(self._source, middle, self._end)

    def head(self, characters: int) -> "tuple[Text, int]":
        """The first ``characters``, or all if there are fewer; and their number."""
        count, size = 0, 0
        for piece in self.pieces():
            if count + len(piece) > characters:
                kept = piece[: characters - count]
                return self.cut(size + len(kept.encode("utf-8")))[0], characters
            count, size = count + len(piece), size + len(piece.encode("utf-8"))
        return self, count


class Collected:
    """Collects the pieces of a text."""

    def __init__(self, folder: Path | None) -> None:
        """A long text goes to a nameless file in ``folder``; None is the system's folder of temporary files."""
        self._folder, self._parts, self._spool = folder, list[bytes](), None
        self.size = 0
        self.blank = True
        """Whether there is no printing character in it."""

    def add(self, piece: str) -> None:
        self.blank = self.blank and not piece.strip()
        content = piece.encode("utf-8")
        self.size += len(content)
        if self._spool is None:
            self._parts.append(content)
            if self.size <= LONG:
                return
            self._spool = _Open(tempfile.TemporaryFile(dir=self._folder))  # noqa: SIM115
            content, self._parts = b"".join(self._parts), []
        self._spool.file.write(content)

    def text(self) -> Text:
        return Text(self._spool or b"".join(self._parts), 0, self.size)
