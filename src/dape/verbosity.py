"""How much is told while something works: the lowest floor, so that everybody can ask. No torch here.

The environment variable ``DAPE_VERBOSITY`` decides, and the processes that a command starts inherit it.
"""

import os
import sys
from typing import Literal, get_args

Verbosity = Literal["quiet", "normal", "verbose"]
VARIABLE = "DAPE_VERBOSITY"


def verbosity() -> Verbosity:
    """What is not a known word counts as normal: progress is no reason to fail."""
    given = os.environ.get(VARIABLE, "")
    return next((known for known in get_args(Verbosity) if known == given), "normal")


def use_verbosity(wanted: Verbosity) -> None:
    os.environ[VARIABLE] = wanted


def is_quiet() -> bool:
    return verbosity() == "quiet"


def is_verbose() -> bool:
    return verbosity() == "verbose"


def tell(text: str) -> None:
    """A line about the work, beside its results: on standard error, and not at all if quiet."""
    if not is_quiet():
        print(text, file=sys.stderr, flush=True)
