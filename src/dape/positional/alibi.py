"""ALiBi (Press et al., 2022):   b_h(i, j) = -m_h (i - j) for j <= i.

Slopes as in the authors' code, which for a number of heads that is no power of two differs from their text: the slopes
of the next smaller power of two c, then every second slope of 2c. The bidirectional form (Ruoss et al., 2023) is
-m_h |i - j| with half a step less for past keys.

The true distance is used, never the row-shifted form ``+m j`` that some libraries take: equal under softmax, wrong
inside DAPE.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dape.positional.angles import float64_device
from dape.positional.base import RelativeBias, asymmetric_distance, column


def alibi_slopes(num_heads: int, *, device: torch.device | None = None, dtype: torch.dtype) -> Float[Tensor, " h"]:
    """2^(-8n/h) for n = 1 ... h if h is a power of two; else c such slopes and odd ones of the doubled list."""
    c = 1 << (num_heads.bit_length() - 1)
    # Float64 until the end: 2^-0.5 rounded twice would differ between devices.
    where = None if device is None else float64_device(device)
    exponents = torch.arange(1, c + 1, device=where, dtype=torch.float64) * (8 / c)
    extra = (2 * torch.arange(num_heads - c, device=where, dtype=torch.float64) + 1) * (4 / c)
    return torch.exp2(-torch.cat([exponents, extra])).to(device, dtype)


class Alibi(RelativeBias):
    def bias_at(self, lag: Int[Tensor, "*s"], *, causal: bool) -> Float[Tensor, "h *s"]:
        slopes = alibi_slopes(self.dims.num_heads, device=lag.device, dtype=self.precision)
        return -column(slopes, lag) * asymmetric_distance(lag, causal=causal, form="past_bonus", dtype=self.precision)
