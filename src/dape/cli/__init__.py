"""The ``dape`` command line. To add a command, see ``commands.py``."""

from dape.cli.app import main

__all__ = ["main"]
