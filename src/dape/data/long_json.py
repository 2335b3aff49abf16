"""A JSON text too long to be held in memory, because strings in it are long.

Long strings go to files of their own as they come, with a mark in their place. What is left is short, and parsed as any
other JSON, so that nothing of its meaning (nesting, keys given twice, what is an error) is decided here.
"""

import json
import re
import secrets
from pathlib import Path
from typing import Any, NamedTuple

from dape.data.text import Collected, Text

SHORT = 1 << 20
"""Characters up to which a string stays where it is."""

_SPACE = re.compile(r"[ \t\r\n]+")
_IN_STRING = re.compile(r'(?:[^"\\]+|\\.)*', re.DOTALL)
# Characters and escapes that mean the same whatever follows: half of a UTF-16 character only with the other half, or
# with something else behind it.
_COMPLETE = re.compile(
    r"""(?: [^\\]+ | \\[^u] | \\u(?![dD][89abAB])[0-9a-fA-F]{4}
          | \\u[dD][89abAB][0-9a-fA-F]{2} (?: \\u[dD][c-fC-F][0-9a-fA-F]{2}
                                            | (?=[^\\]) | (?=\\[^u]) | (?=\\u(?![dD][c-fC-F])[0-9a-fA-F]{4}) ) )*""",
    re.DOTALL | re.VERBOSE,
)
LONGEST_INCOMPLETE = 12
_SURROGATES = re.compile("[\ud800-\udfff]")


class CleanString(NamedTuple):
    text: Text
    blank: bool
    surrogates: int
    """Halves of UTF-16 characters (JSON can write \\ud83d), which have no UTF-8 form: U+FFFD in the text."""

    @classmethod
    def of(cls, string: str, folder: Path | None) -> "CleanString":
        made = _Cleaning(folder)
        for at in range(0, len(string), SHORT):
            made.add(string[at : at + SHORT])
        return made.string()


class _Cleaning:
    """A clean string in the making."""

    def __init__(self, folder: Path | None) -> None:
        self._collected, self._surrogates = Collected(folder), 0

    def add(self, piece: str) -> None:
        clean, count = (piece, 0) if piece.isascii() else _SURROGATES.subn("�", piece)
        self._collected.add(clean)
        self._surrogates += count

    def string(self) -> CleanString:
        return CleanString(self._collected.text(), self._collected.blank, self._surrogates)


class LongJSON:
    """Fed with a JSON text, piece by piece."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._rest: list[str] = []
        """The JSON without its long strings."""
        self._carried = ""
        """A backslash whose second character is in the next piece."""
        self._string: list[str] | None = None
        """The string that is being read, as it is written, as far as it is not in ``_long``."""
        self._length = 0
        self._long: _Cleaning | None = None
        """The part of that string that was read before, if it is long."""
        self.long: dict[str, CleanString] = {}
        """Strings in the value that are keys here stand for these."""

    @property
    def blank(self) -> bool:
        """Whether there was nothing but space."""
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
            if len(joined) - end > LONGEST_INCOMPLETE:  # then no escape: for the parser to complain about
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
