"""Errors with a meaning for the command line. The library itself raises plain ValueError and TypeError."""


class UsageError(ValueError):
    """What was asked for cannot be meant: the command line answers with this message and exit code 2."""
