"""The text of a document: in memory if it is short, else in a temporary file, of which a piece is read at a time."""

import codecs
import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

LONG = 4 << 20
"""Bytes beyond which a text is not held in memory."""
PIECE = 1 << 16
"""Bytes that are decoded at once."""


class _Open:
    """A file that is closed with the last text in it; one without a name is then gone."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def __del__(self) -> None:
        self.file.close()

    def __getitem__(self, span: slice) -> bytes:
        self.file.seek(span.start)
        return self.file.read(max(span.stop - span.start, 0))


class Text:
    """UTF-8 between two characters of a source."""

    def __init__(self, source: bytes | _Open, begin: int, end: int) -> None:
        self._source, self._begin, self._end = source, begin, end
        self._digest: bytes | None = None

    @classmethod
    def of(cls, text: str) -> "Text":
        content = text.encode("utf-8")
        return cls(content, 0, len(content))

    @classmethod
    def of_file(cls, file: BinaryIO, size: int) -> "Text":
        """The whole of a file, which is closed when nobody needs the text any more."""
        return cls(_Open(file), 0, size)

    @property
    def size(self) -> int:
        """In bytes."""
        return self._end - self._begin

    def read(self, begin: int, end: int) -> bytes:
        """Its bytes from ``begin`` to ``end``, as far as there are any."""
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
        """All of it, in strings of bounded size."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        for at in range(0, self.size, PIECE):
            yield decoder.decode(self.read(at, at + PIECE))

    def __str__(self) -> str:
        return "".join(self.pieces())

    def cut(self, at: int) -> "tuple[Text, Text]":
        """Before and after byte ``at``, where a character begins."""
        middle = self._begin + at
        return Text(self._source, self._begin, middle), Text(self._source, middle, self._end)

    def head(self, characters: int) -> "tuple[Text, int]":
        """The first so many characters, or all if there are fewer; and how many those are."""
        count, size = 0, 0
        for piece in self.pieces():
            if count + len(piece) > characters:
                kept = piece[: characters - count]
                return self.cut(size + len(kept.encode("utf-8")))[0], characters
            count, size = count + len(piece), size + len(piece.encode("utf-8"))
        return self, count


class Collected:
    """A text in the making."""

    def __init__(self, folder: Path | None) -> None:
        """A long one goes to a nameless file in ``folder``, or where the system has its temporary files."""
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
