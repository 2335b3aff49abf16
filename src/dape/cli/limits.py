"""Upper limits of numbers on the command line, checked before anything is built."""

from dataclasses import fields, is_dataclass

from dape.cli.fields import flag_of
from dape.errors import UsageError
from dape.machine import check_threads

MOST = {
    "layers": 10_000,
    "width": 1_000_000,
    "heads": 10_000,
    "hidden": 1_000_000,
    "batch": 10_000_000,
    "steps": 1_000_000_000,
    "seeds": 10_000,
    "jobs": 10_000,
    "samples": 1_000_000,
    "windows": 10_000_000,
    "repeats": 1_000_000,
    "warm_up": 1_000_000,
    "pool": 1_000_000_000,
    "pairs": 1_000_000,
    "train_length": 1_000_000_000,
    "max_tokens": 1_000_000_000,
    "vocabulary": 10_000_000,
    "bytes_mb": 100_000,
    "bpe_mb": 10_000,
}
"""By the name of the argument, for all commands."""


def check_limits(config: object) -> None:
    """Check all integers of a command and of its sections."""
    if not is_dataclass(config):
        return
    for each in fields(config):
        value = getattr(config, each.name)
        check_limits(value)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int) and not isinstance(number, bool):
                _check(each.name, number)


def _check(name: str, number: int) -> None:
    flag = flag_of(name)
    if not -(2**63) <= number < 2**63:
        digits = len(str(abs(number)))
        raise UsageError(f"{flag} must lie between -2^63 and 2^63 - 1, got a number of {digits} digits")
    if name == "threads" and number > 0:
        check_threads(number)
    if number > MOST.get(name, number):
        raise UsageError(f"{flag} {number}: the limit is {MOST[name]:,}")
