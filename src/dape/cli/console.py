"""Where commands print their tables."""

import os
import sys

from rich.console import Console

ONE_LINE_PER_ROW = 1000


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would exit here; main() answers for all commands alike


def open_console() -> Console:
    """Standard output: as wide as the terminal, and without line breaks inside rows for grep or a file.

    Colour follows NO_COLOR and FORCE_COLOR; COLUMNS overrides the width. All of this is rich's own doing.
    """
    fixed_width = sys.stdout.isatty() or os.environ.get("COLUMNS")
    return _Console(width=None if fixed_width else ONE_LINE_PER_ROW)
