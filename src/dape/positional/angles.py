"""Angles p w of positions p and frequencies w, for rotations and sinusoids.

In float32 an angle of 10^5 radians has an error of up to 4e-3, and a rounded frequency adds as much. Therefore
frequencies and angles are float64, and only their sines and cosines are rounded (docs/numerics.md has the errors).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

WITHOUT_FLOAT64 = ("mps",)


def float64_device(device: torch.device) -> torch.device:
    """The device itself, or the CPU if the device has no float64."""
    return torch.device("cpu") if device.type in WITHOUT_FLOAT64 else device


def exact_dtype(device: torch.device) -> torch.dtype:
    """The most precise dtype of a device, for sums along a text."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def frequencies(width: int, base: float, device: torch.device) -> Float[Tensor, " c"]:
    """base^(-2c / width) for c = 0 ... width/2 - 1, in float64."""
    channel = torch.arange(0, width // 2, device=float64_device(device), dtype=torch.float64)
    return base ** (-2 * channel / width)


def angles(positions: Int[Tensor, "*#s"], frequencies: Float[Tensor, "..."]) -> Float[Tensor, "*s c"]:
    """The angles of every position, in float64. ``frequencies`` broadcast against [*s, c]."""
    return positions.to(frequencies.device, torch.float64).unsqueeze(-1) * frequencies
