"""The master switch of hand-written kernels, C++ and Triton: the environment variable DAPE_KERNELS. No torch here."""

import os
from typing import Literal, get_args

from dape.errors import UsageError

SWITCH = "DAPE_KERNELS"
Mode = Literal["off", "verify", "trust"]
MEANINGS: dict[Mode, str] = {
    "off": "no hand-written kernels: attention runs in PyTorch's operations",
    "verify": "Triton kernels are used once they have agreed with the reference on this GPU (the default)",
    "trust": "Triton kernels are used unchecked",
}
WHY_OFF = f"hand-written kernels are switched off by the environment variable {SWITCH}=off (verify is the default)"


def kernels_mode() -> Mode:
    """What the variable says now: it is read at every call, never when the package is imported."""
    given = os.environ.get(SWITCH, "verify")
    for mode in get_args(Mode):
        if given == mode:
            return mode
    choices = "; ".join(f"{mode}: {meaning}" for mode, meaning in MEANINGS.items())
    raise UsageError(f"the environment variable {SWITCH} is {given!r}, but must be one of {choices}; or unset it")
