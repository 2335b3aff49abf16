"""Sandwich (Chi et al., 2023): the inner product of two sinusoidal position vectors, one temperature per head.

b_h(i, j) = (S(i - j) - w/2) / (8 h / H),   S(n) = sum_{m=0}^{w/2-1} cos(n / base^(2m/w)),   h = 1 ... H.

No parameters. Frequencies start at m = 0 (descriptions differ). The constant w/2 makes the bias of lag 0 equal to 0;
softmax ignores it, but DAPE does not. The bias is an even function of the lag, so that the bidirectional form does not
distinguish past from future.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dape.positional.angles import angles, frequencies
from dape.positional.base import AttentionDims, RelativeBias, column, require_count, require_positive


class Sandwich(RelativeBias):
    def __init__(self, dims: AttentionDims, *, width: int = 128, base: float = 10000.0) -> None:
        super().__init__(dims)
        if require_count("width", width) % 2:
            raise ValueError(f"sandwich pairs sines with cosines: width must be even, got {width}")
        self.width = width
        self.base = require_positive("base", base)

    def bias_at(self, lag: Int[Tensor, "*s"], *, causal: bool) -> Float[Tensor, "h *s"]:
        head = torch.arange(1, self.dims.num_heads + 1, device=lag.device, dtype=self.precision)
        return self._shifted_sum(lag) / column(8 * head / self.dims.num_heads, lag)

    def _shifted_sum(self, lag: Int[Tensor, "*s"]) -> Float[Tensor, "*s"]:
        """S - w/2."""
        if lag.dim() > 1 and not torch.compiler.is_compiling() and lag.numel():
            # A row block has many cells but few different lags.
            low, high = (int(x) for x in lag.aminmax())
            if high - low < lag.numel():
                return self._shifted_sum(torch.arange(low, high + 1, device=lag.device))[lag - low]
        # One frequency at a time, because all 64 at once would take 64 times the memory of a row block.
        total: Tensor | int = -(self.width // 2)
        for w in frequencies(self.width, self.base, lag.device):
            total = total + angles(lag, w).squeeze(-1).cos()
        assert isinstance(total, Tensor)
        return total.to(lag.device, self.precision)
