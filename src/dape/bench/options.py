"""What the benchmark commands share: checks of their options, and torch's threads. Imports torch only where it must."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dape.errors import UsageError
from dape.machine import GB, available_bytes, check_threads
from dape.positional.catalogue import find
from dape.provenance import machine

INTERRUPTED = 130
SHARE_OF_MEMORY = 0.7


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def check_counts(config: object, *names: str) -> None:
    """None is left alone: it stands for a default."""
    for name in names:
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UsageError(f"{flag(name)} must be at least 1, got {value}")


def check_lengths(lengths: Sequence[int]) -> None:
    if not lengths:
        raise UsageError("--lengths needs at least one length")
    if min(lengths) < 1:
        raise UsageError(f"--lengths must be positive, got {min(lengths)}")


def check_choices(name: str, given: Sequence[str], choices: Sequence[str]) -> None:
    if not given:
        raise UsageError(f"{flag(name)} needs at least one of {', '.join(choices)}")
    for value in given:
        if value not in choices:
            raise UsageError(f"{flag(name)}: {value!r} is not known; choose from {', '.join(choices)}")


def check_memory_limit(limit_gb: float | None) -> None:
    if limit_gb is not None and not limit_gb > 0:
        raise UsageError(f"--memory-limit-gb must be positive, got {limit_gb}")


def check_encoding(name: str, encoding: str) -> None:
    try:
        find(encoding)
    except ValueError as error:
        raise UsageError(f"{flag(name)}: {error}") from error


def check_device(name: str) -> None:
    import torch

    try:
        torch.zeros(1, device=name).item()  # "meta" exists, but holds no numbers
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"--device {name}: cannot be used here ({reason})") from error


@contextlib.contextmanager
def torch_threads(wanted: int | None) -> Iterator[int]:
    """Set torch's threads for a while; yields how many there are."""
    import torch

    before = torch.get_num_threads()
    if wanted is not None:
        check_threads(wanted)
    torch.set_num_threads(wanted or before)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def memory_limit(limit_gb: float | None, device: str) -> float:
    """How many bytes may be used: what was asked for, or a share of what is free on the device."""
    if limit_gb is not None:
        return limit_gb * GB
    if device.startswith("cuda"):
        import torch

        return SHARE_OF_MEMORY * torch.cuda.mem_get_info(device)[0]
    return SHARE_OF_MEMORY * available_bytes()


def circumstances(config: Any, threads: int) -> dict[str, Any]:
    """The options of a benchmark, a dataclass, and everything else that its numbers depend on."""
    import torch

    given = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(config).items()}
    return {**given, "threads": threads, "torch": torch.__version__, **machine()}
