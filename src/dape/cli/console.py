"""Where commands print their tables."""

import os
import sys

from rich.console import Console

ONE_LINE_PER_ROW = 1000


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would exit here; main() decides the exit code


def open_console() -> Console:
    """Standard output, as wide as the terminal. In a file or a pipe each row stays on one line, for grep.

    rich itself reads NO_COLOR, FORCE_COLOR and COLUMNS (which overrides the width).
    """
    fixed_width = sys.stdout.isatty() or os.environ.get("COLUMNS")
    return _Console(width=None if fixed_width else ONE_LINE_PER_ROW)
