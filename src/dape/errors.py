"""Errors with a meaning for the command line. The library itself raises plain ValueError and TypeError."""


class UsageError(ValueError):
    """Invalid arguments: the command line answers with this message and exit code 2."""
