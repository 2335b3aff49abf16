"""The error for invalid arguments. Other errors of the library are plain ValueError and TypeError."""

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """Invalid arguments: the command line prints the message and exits with code 2."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """A sentence with the known name nearest to the given one, with a space before it; empty if none is near."""
    near = difflib.get_close_matches(given, known, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
