"""The encoder's feed-forward network."""

from jaxtyping import Float
from torch import Tensor, nn

from dape.ops.products.feed_forward import feed_forward


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Float[Tensor, "b t m"]) -> Float[Tensor, "b t m"]:
        y = feed_forward(x.flatten(0, -2), self.up.weight, self.up.bias, self.down.weight, self.down.bias)
        return y.view_as(x)
