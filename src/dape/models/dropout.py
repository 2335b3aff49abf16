"""Dropout from an explicit generator: what is dropped is a function of the generator alone."""

import torch
from jaxtyping import Float
from torch import Tensor

LANES = 1 << 16


def drop(x: Float[Tensor, "*s"], p: float, noise: torch.Generator | None) -> Float[Tensor, "*s"]:
    """Set numbers to 0 with probability ``p`` and scale the rest so that the mean stays; without ``noise``, nothing.

    Four elements share a random number of 64 bits, which is twice as fast on a CPU as torch's dropout: each is dropped
    if its own 16 bits are below a threshold. ``p`` is rounded to 16 bits, and the scale is of the rounded value."""
    count = round(p * LANES)
    if noise is None or count == 0:
        return x
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device)
    lanes = words.random_(-(2**63), None, generator=noise).view(torch.int16)[: x.numel()].view(x.shape)
    return x * (lanes >= count - LANES // 2).to(x.dtype).mul_(LANES / (LANES - count))
