"""Checks of the options that benchmarks share, and torch's threads. Imports torch only where it must."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from dape.errors import UsageError, check_counts, did_you_mean
from dape.files import check_writable_file
from dape.machine import GB, available_bytes, check_threads
from dape.positional.catalogue import find
from dape.provenance import machine

SHARE_OF_MEMORY = 0.7


@dataclass(frozen=True, kw_only=True)
class WithFile:
    json: Path | None = None
    """Also write the results to this file."""


@dataclass(frozen=True, kw_only=True)
class WithTorch(WithFile):
    threads: int | None = None
    """Threads of torch; None leaves the choice to torch."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, cuda:1, ..."""


def check_common(config: Any, *counts: str, names: str | None = None, besides: str = "") -> None:
    """Check the options that most benchmarks have. Raises UsageError.

    ``counts`` are options that must be positive or None; ``names`` is the option with names of encodings, in which the
    word ``besides`` is allowed too. Lengths, the memory limit and the file are checked if there are such options.
    """
    check_counts(config, *counts)
    if hasattr(config, "lengths"):
        _check_lengths(config.lengths or ())
    if names is not None:
        _check_encodings(names, getattr(config, names), besides)
    limit = getattr(config, "memory_limit_gb", None)
    if limit is not None and not limit > 0:
        raise UsageError(f"`memory_limit_gb` must be positive, got {limit}")
    if config.json is not None:
        check_writable_file(config.json, "`json`")


def _check_lengths(lengths: Sequence[int]) -> None:
    if not lengths:
        raise UsageError("`lengths` needs at least one length")
    if min(lengths) < 1:
        raise UsageError(f"`lengths` must be positive, got {min(lengths)}")


def _check_encodings(name: str, given: Sequence[str], besides: str) -> None:
    if not given:
        raise UsageError(f"`{name}` needs at least one name from `dape list`{besides and f', or {besides}'}")
    for encoding in given:
        if encoding != besides:
            check_encoding(name, encoding)


def check_choices(name: str, given: Sequence[str], choices: Sequence[str]) -> None:
    if not given:
        raise UsageError(f"`{name}` needs at least one of {', '.join(choices)}")
    for value in given:
        if value not in choices:
            raise UsageError(
                f"`{name}`: {value!r} is not known; choose from {', '.join(choices)}.{did_you_mean(value, choices)}"
            )


def check_encoding(name: str, encoding: str) -> None:
    try:
        find(encoding)
    except ValueError as error:
        raise UsageError(f"`{name}`: {error}") from error


def _check_device(name: str) -> None:
    import torch

    try:
        torch.zeros(1, device=name).item()  # "meta" exists, but holds no numbers
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"`device` {name}: cannot be used here ({reason})") from error


@contextlib.contextmanager
def surroundings(config: Any) -> Iterator[dict[str, Any]]:
    """Set torch's threads as ``config`` says, and yield its options with machine and versions.

    A benchmark without an option ``threads`` does not use torch.
    """
    given = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(config).items()}
    if "threads" not in given:
        yield {**given, **machine()}
        return
    import torch

    before = torch.get_num_threads()
    if config.threads is not None:
        check_threads(config.threads)
    torch.set_num_threads(config.threads or before)
    try:
        _check_device(given.get("device", "cpu"))
        yield {**given, "threads": torch.get_num_threads(), "torch": torch.__version__, **machine()}
    finally:
        torch.set_num_threads(before)


def memory_limit(limit_gb: float | None, device: str) -> float:
    """Bytes that may be used: the given limit, or a share of the free memory of the device."""
    if limit_gb is not None:
        return limit_gb * GB
    if device.startswith("cuda"):
        import torch

        return SHARE_OF_MEMORY * torch.cuda.mem_get_info(device)[0]
    return SHARE_OF_MEMORY * available_bytes()


T = TypeVar("T", bound=Any)


def fields_for(kind: type[T], config: Any, **others: Any) -> T:
    """A dataclass with the given fields; the other fields are the options of the same names."""
    names = [field.name for field in fields(kind)]
    return kind(**{name: others[name] if name in others else getattr(config, name) for name in names})


def unique(config: T, *names: str) -> T:
    """The options, with repeated values removed from the named ones."""
    return replace(config, **{name: tuple(dict.fromkeys(getattr(config, name))) for name in names})
