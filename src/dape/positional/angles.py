"""Angles p w of positions p and frequencies w, for every encoding that turns or oscillates.

In float32 an angle of 10^5 radians is off by up to 4e-3, and a frequency rounded to it by as much again. So frequencies
and angles are float64, and only their sines and cosines are rounded (docs/numerics.md has the errors).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

WITHOUT_FLOAT64 = ("mps",)


def float64_device(device: torch.device) -> torch.device:
    """Where float64 is computed for this device: there, or on the CPU if it has none."""
    return torch.device("cpu") if device.type in WITHOUT_FLOAT64 else device


def exact_dtype(device: torch.device) -> torch.dtype:
    """For sums along a text, which stay on their device."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def frequencies(width: int, base: float, device: torch.device) -> Float[Tensor, " c"]:
    """base^(-2c / width) for c = 0 ... width/2 - 1, in float64."""
    channel = torch.arange(0, width // 2, device=float64_device(device), dtype=torch.float64)
    return base ** (-2 * channel / width)


def angles(positions: Int[Tensor, "*s"], frequencies: Float[Tensor, "..."]) -> Float[Tensor, "*s c"]:
    """Of every position (frequencies broadcast against [*s, c]), in float64."""
    return positions.to(frequencies.device, torch.float64).unsqueeze(-1) * frequencies
