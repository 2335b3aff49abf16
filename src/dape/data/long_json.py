"""Parse JSON that is too long for memory because of long strings.

Long strings are written to files as they are read, and replaced by a mark. The rest is short, and parsed by ``json``,
which decides about nesting, repeated keys and errors.
"""

import json
import re
import secrets
from pathlib import Path
from typing import Any, NamedTuple

from dape.data.text import Collected, Text

SHORT = 1 << 20
"""Longer strings, in characters, are written to files."""

_SPACE = re.compile(r"[ \t\r\n]+")
_IN_STRING = re.compile(r'(?:[^"\\]+|\\.)*', re.DOTALL)
# The longest beginning whose meaning does not depend on what follows: it does not end within an escape, nor after the
# first half of a UTF-16 character.
_COMPLETE = re.compile(
    r"""(?: [^\\]+ | \\[^u] | \\u(?![dD][89abAB])[0-9a-fA-F]{4}
          | \\u[dD][89abAB][0-9a-fA-F]{2} (?: \\u[dD][c-fC-F][0-9a-fA-F]{2}
                                            | (?=[^\\]) | (?=\\[^u]) | (?=\\u(?![dD][c-fC-F])[0-9a-fA-F]{4}) ) )*""",
    re.DOTALL | re.VERBOSE,
)
LONGEST_INCOMPLETE = 12
"""Characters of two \\uXXXX escapes."""
_SURROGATES = re.compile("[\ud800-\udfff]")


class CleanString(NamedTuple):
    text: Text
    blank: bool
    surrogates: int
    """Number of half UTF-16 characters (JSON can write \\ud83d). They have no UTF-8 form and became U+FFFD."""

    @classmethod
    def of(cls, string: str, folder: Path | None) -> "CleanString":
        made = _Cleaning(folder)
        for at in range(0, len(string), SHORT):
            made.add(string[at : at + SHORT])
        return made.string()


class _Cleaning:
    """Collects the pieces of a CleanString."""

    def __init__(self, folder: Path | None) -> None:
        self._collected, self._surrogates = Collected(folder), 0

    def add(self, piece: str) -> None:
        clean, count = (piece, 0) if piece.isascii() else _SURROGATES.subn("�", piece)
        self._collected.add(clean)
        self._surrogates += count

    def string(self) -> CleanString:
        return CleanString(self._collected.text(), self._collected.blank, self._surrogates)


class LongJSON:
    """Parses a JSON text that is fed piece by piece."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._rest: list[str] = []
        """The JSON text, with marks for its long strings."""
        self._carried = ""
        """A backslash at the end of a piece, whose escape goes on in the next one."""
        self._string: list[str] | None = None
        """Source of the string that is being read, without the part in ``_long``; None outside of strings."""
        self._length = 0
        """Characters of ``_string``."""
        self._long: _Cleaning | None = None
        """The beginning of that string, if it is long."""
        self.long: dict[str, CleanString] = {}
        """Long strings by their marks."""

    @property
    def blank(self) -> bool:
        """Whether the text has nothing but white space."""
        return self._string is None and not "".join(self._rest).strip()

    def value(self) -> Any:
        if self._string is not None:
            raise ValueError("Unterminated string")
        return json.loads("".join(self._rest))

    def feed(self, piece: str) -> None:
        piece, self._carried, at = self._carried + piece, "", 0
        while at < len(piece):
            if self._string is None:
                quote = piece.find('"', at)
                end = quote if quote >= 0 else len(piece)
                self._rest.append(_SPACE.sub(" ", piece[at:end]))
                at, self._string = end + 1, None if quote < 0 else []
                continue
            found = _IN_STRING.match(piece, at)
            assert found
            self._add(piece[at : found.end()])
            at = found.end()
            if piece.startswith('"', at):
                self._close()
                at += 1
            else:
                self._carried = piece[at:]
                return

    def _add(self, written: str) -> None:
        assert self._string is not None
        self._string.append(written)
        self._length += len(written)
        if self._length > SHORT:
            self._long = self._long or _Cleaning(self._folder)
            joined = "".join(self._string)
            complete = _COMPLETE.match(joined)
            assert complete
            end = complete.end()
            if len(joined) - end > LONGEST_INCOMPLETE:  # not a valid escape: the parser raises the error
                end = len(joined)
            self._long.add(json.loads(f'"{joined[:end]}"'))
            self._string, self._length = [joined[end:]], len(joined) - end

    def _close(self) -> None:
        assert self._string is not None
        written = "".join(self._string)
        if self._long is not None:
            self._long.add(json.loads(f'"{written}"'))
            written = secrets.token_hex(16)
            self.long[written] = self._long.string()
        self._rest.append(f'"{written}"')
        self._string, self._length, self._long = None, 0, None
