"""Where progress is shown: as a bar that is drawn anew, or as lines of text."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def progress_console() -> "tuple[Console, bool]":
    """A console on standard error, and whether it can draw a line anew: a terminal can, and a notebook with ipywidgets.
    Without them rich shows nothing but a warning, so a notebook is then written to like a file."""
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_jupyter and find_spec("ipywidgets") is None:
        console = Console(stderr=True, force_jupyter=False, force_terminal=False)
    return console, console.is_terminal or console.is_jupyter
