"""Dropout from an explicit generator: what is dropped is a function of the generator alone."""

from dataclasses import dataclass

import torch
from jaxtyping import Int16
from torch import Tensor

LANES = 1 << 16


@dataclass(frozen=True)
class Dropout:
    """A draw: a number is dropped if its lane, equally likely anywhere in 16 bits, is below ``lowest``."""

    lanes: Int16[Tensor, "*s"]
    lowest: int

    @classmethod
    def draw(cls, like: Tensor, p: float, noise: torch.Generator) -> "Dropout | None":
        """Twice as fast on a CPU as torch's: four elements share a random number. p is rounded to 16 bits, and what
        remains is scaled by the rounded value, so that the mean is exact. None if nothing is dropped."""
        count = round(p * LANES)
        if count == 0:
            return None
        words = torch.empty(-(-like.numel() // 4), dtype=torch.int64, device=like.device)
        lanes = words.random_(-(2**63), None, generator=noise).view(torch.int16)[: like.numel()].view(like.shape)
        return cls(lanes, count - LANES // 2)

    @property
    def factor(self) -> float:
        """Of what remains."""
        return LANES / (LANES // 2 - self.lowest)

    def __call__(self, x: Tensor) -> Tensor:
        return x * (self.lanes >= self.lowest).to(x.dtype).mul_(self.factor)
