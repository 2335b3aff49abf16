"""The device and threads to compute with. Imports torch only when called."""

from typing import TYPE_CHECKING

from dape.errors import UsageError
from dape.machine import check_threads

if TYPE_CHECKING:
    import torch


def use_device(name: str) -> "torch.device":
    """The device of that name. UsageError if nothing can be computed there."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()  # "meta" exists, but holds no numbers
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"`device` {name}: cannot be used here ({reason})") from error
    return torch.device(name)


def set_threads(wanted: int | None) -> None:
    import torch

    if wanted is None:
        return
    check_threads(wanted)
    torch.set_num_threads(wanted)


def free_memory(device: "torch.device") -> int:
    """Bytes that are free for a model."""
    import torch

    from dape.machine import available_bytes

    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()
