"""Print the results of a command."""

import sys

from dape.actions.found import Found
from dape.cli.console import open_console
from dape.cli.fields import with_flags
from dape.fitting import wrapped


def show(found: Found) -> int:
    """Print failures, tables, the summary and the names of written files; return the exit code."""
    from rich.text import Text

    from dape.cli.commands import COMMANDS  # imports the commands, which import this module

    for name, reason in found.failures.items():
        print(f"dape: {name} failed, {with_flags(reason, [c.config for c in COMMANDS])}", file=sys.stderr)
    if not found.rows:
        return 1
    console = open_console()
    console.print(*(found.terminal(console.width) or [Text(found.table())]), sep="\n")
    if summary := found.summary().strip():
        print(f"\n{wrapped(summary, console.width)}\n")
    if found.files:
        print(f"wrote {', '.join(found.files)} in {found.out}")
    return 1 if found.failures else 0
