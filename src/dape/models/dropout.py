"""Dropout from an explicit generator, independent of torch's global one."""

import torch
from jaxtyping import Float
from torch import Tensor

LEVELS = 1 << 16
"""Different values of 16 random bits."""


def drop(x: Float[Tensor, "*s"], p: float, noise: torch.Generator | None) -> Float[Tensor, "*s"]:
    """Set elements to 0 with probability ``p`` and scale the others so that the mean stays. No ``noise``: no dropout.

    Four elements share a random number of 64 bits, which is twice as fast on a CPU as torch's dropout. An element is
    dropped if its own 16 bits, as a signed integer, are below a threshold. ``p`` is rounded to 16 bits, and the scale
    follows the rounded value.
    """
    dropped = round(p * LEVELS)
    if noise is None or dropped == 0:
        return x
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device)
    drawn = words.random_(-(2**63), None, generator=noise).view(torch.int16)[: x.numel()].view(x.shape)
    return x * (drawn >= dropped - LEVELS // 2).to(x.dtype).mul_(LEVELS / (LEVELS - dropped))
