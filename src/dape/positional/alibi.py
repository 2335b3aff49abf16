"""ALiBi (Press et al., 2022):   b_h(i, j) = -m_h (i - j) for j <= i.

The slopes are those of the authors' code. If the number of heads is not a power of two, they differ from the paper's
text: the slopes of the next smaller power of two c, then every second slope of 2c. The bidirectional form (Ruoss et
al., 2023) is -m_h |i - j| with half a step less for past keys.

Some libraries use the row-shifted form ``+m j``. It gives the same softmax, but another result inside DAPE, so this
module uses the distance.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dape.positional.angles import float64_device
from dape.positional.base import RelativeBias, asymmetric_distance, column


def alibi_slopes(num_heads: int, *, device: torch.device | None = None, dtype: torch.dtype) -> Float[Tensor, " h"]:
    """2^(-8n/h) for n = 1 ... h if h is a power of two. Otherwise the slopes of c heads, then every second of 2c
    heads."""
    c = 1 << (num_heads.bit_length() - 1)
    # Rounded once at the end, so that all devices give the same slopes.
    where = None if device is None else float64_device(device)
    exponents = torch.arange(1, c + 1, device=where, dtype=torch.float64) * (8 / c)
    extra = (2 * torch.arange(num_heads - c, device=where, dtype=torch.float64) + 1) * (4 / c)
    return torch.exp2(-torch.cat([exponents, extra])).to(device, dtype)


class Alibi(RelativeBias):
    def bias_at(self, lag: Int[Tensor, "*s"], *, causal: bool) -> Float[Tensor, "h *s"]:
        slopes = alibi_slopes(self.dims.num_heads, device=lag.device, dtype=self.precision)
        return -column(slopes, lag) * asymmetric_distance(lag, causal=causal, form="past_bonus", dtype=self.precision)
