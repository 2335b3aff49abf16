"""Environment variables that switch kernels: DAPE_KERNELS for all of them, DAPE_FUSED for those in C++.

They are read at every call, not when the package is imported. No torch here.
"""

import os
from collections.abc import Mapping
from typing import Literal, TypeVar

from dape.errors import UsageError

SWITCH = "DAPE_KERNELS"
T = TypeVar("T", bound=str)
Mode = Literal["off", "verify", "trust"]
MEANINGS: dict[Mode, str] = {
    "off": "no hand-written kernels: attention runs in PyTorch's operations",
    "verify": "Triton kernels are used once they have agreed with the reference on this GPU (the default)",
    "trust": "Triton kernels are used unchecked",
}
WHY_OFF = f"hand-written kernels are switched off by the environment variable {SWITCH}=off (verify is the default)"


FUSED_SWITCH = "DAPE_FUSED"
FusedMode = Literal["0", "1", "native", "prebuilt"]
FUSED_MEANINGS: dict[FusedMode, str] = {
    "0": "no C++ kernels",
    "1": "those that came with the package where they fit this processor, otherwise compiled here (the default)",
    "native": "compiled here for exactly this processor",
    "prebuilt": "those that came with the package, and nothing is compiled",
}


def kernels_mode() -> Mode:
    return _chosen(SWITCH, MEANINGS, "verify")


def fused_mode() -> FusedMode:
    return _chosen(FUSED_SWITCH, FUSED_MEANINGS, "1")


def _chosen(switch: str, meanings: Mapping[T, str], default: T) -> T:
    given = os.environ.get(switch, default)
    for mode in meanings:
        if given == mode:
            return mode
    choices = "; ".join(f"{mode}: {meaning}" for mode, meaning in meanings.items())
    raise UsageError(f"the environment variable {switch} is {given!r}, but must be one of {choices}; or unset it")
