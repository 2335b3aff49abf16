"""Sinusoidal absolute positions (Vaswani et al., 2017), halves layout:

PE[p] = [sin(p w_0) ... sin(p w_{m/2-1}), cos(p w_0) ... cos(p w_{m/2-1})],   w_c = base^(-2c/m),   x_p + PE[p].
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dape.positional.angles import angles, frequencies
from dape.positional.base import AttentionDims, PositionalEncoding, accumulation_dtype, require_positive


def sinusoid(
    positions: Int[Tensor, "*s"], width: int, *, base: float = 10000.0, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "*s w"]:
    """Sine and cosine halves for any positions, negative ones included."""
    angle = angles(positions, frequencies(width, base, positions.device))
    return torch.cat([angle.sin(), angle.cos()], dim=-1).to(positions.device, dtype)


class Sinusoidal(PositionalEncoding):
    def __init__(self, dims: AttentionDims, *, base: float = 10000.0) -> None:
        super().__init__(dims)
        if dims.model_dim % 2:
            raise ValueError(f"sinusoidal positions need an even model_dim, got {dims.model_dim}")
        self.base = require_positive("base", base)

    def embed(self, x: Float[Tensor, "*b t m"], positions: Int[Tensor, "*#b t"]) -> Float[Tensor, "*b t m"]:
        dtype = accumulation_dtype(x.dtype)
        return x + sinusoid(positions, self.dims.model_dim, base=self.base, dtype=dtype).to(x.dtype)
