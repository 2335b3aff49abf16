"""How much is printed during work. All packages may import this module. No torch here.

The environment variable ``DAPE_VERBOSITY`` decides; processes that a command starts inherit it.
"""

import os
import sys
from typing import Literal, get_args

Verbosity = Literal["quiet", "normal", "verbose"]
VARIABLE = "DAPE_VERBOSITY"


def verbosity() -> Verbosity:
    """The chosen verbosity. An unknown value counts as normal, since it is no reason to fail."""
    given = os.environ.get(VARIABLE, "")
    return next((known for known in get_args(Verbosity) if known == given), "normal")


def use_verbosity(wanted: Verbosity) -> None:
    os.environ[VARIABLE] = wanted


def is_quiet() -> bool:
    return verbosity() == "quiet"


def is_verbose() -> bool:
    return verbosity() == "verbose"


def tell(text: str) -> None:
    """Print a line about the work, not a result, to standard error; nothing if quiet."""
    if not is_quiet():
        print(text, file=sys.stderr, flush=True)
