"""The parts of a transformer block, shared by every model."""

from jaxtyping import Float
from torch import Tensor, nn

from dape.models.cache import LayerCache
from dape.ops.attention import attention
from dape.positional.base import PositionalEncoding


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int, *, bias: bool = True, causal: bool = True) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} cannot be divided into {heads} heads of equal width")
        self.heads = heads
        self.causal = causal
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(
        self, x: Float[Tensor, "b t m"], pe: PositionalEncoding, cache: LayerCache | None = None
    ) -> Float[Tensor, "b t m"]:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = cache.append(k, v)
        y = attention(q, k, v, pe, causal=self.causal)
        return self.out(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int, activation: nn.Module) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.activation = activation
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Float[Tensor, "b t m"]) -> Float[Tensor, "b t m"]:
        return self.down(self.activation(self.up(x)))
