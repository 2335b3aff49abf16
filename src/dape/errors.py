"""The error for invalid arguments. Other errors of the library are plain ValueError and TypeError."""

import difflib
from collections.abc import Iterable
from typing import Any


class UsageError(ValueError):
    """Invalid arguments: the command line prints the message and exits with code 2."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """A sentence with the known name nearest to the given one, with a space before it; empty if none is near."""
    near = difflib.get_close_matches(given, known, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def check_counts(of: object = None, *names: str, **given: Any) -> None:
    """Raise UsageError for a number below 1, in one of the named fields or given by name. None is no number."""
    for name, value in {**{name: getattr(of, name) for name in names}, **given}.items():
        if value is not None and value < 1:
            raise UsageError(f"`{name}` must be at least 1, got {value}")


def check_seed(seed: int) -> None:
    if not 0 <= seed < 1 << 63:
        raise UsageError(f"`seed` must lie between 0 and 2^63 - 1, got {seed}")


def check_heads(width: int, heads: int) -> None:
    if width % heads:
        raise UsageError(f"`width` {width} cannot be divided into `heads` {heads} of equal width")
