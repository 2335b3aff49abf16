"""The ``dape`` command line. To add a command, see ``commands.py``."""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``dape`` with the given arguments (the process's own by default) and return the exit code."""
    try:
        from dape.cli import app
    except KeyboardInterrupt:  # importing all commands takes half a second, more on a busy machine
        print("dape: interrupted", file=sys.stderr)
        return 130
    return app.main(argv)


__all__ = ["main"]
