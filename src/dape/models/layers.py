"""The parts of a transformer block, shared by every model."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dape.models.cache import Store
from dape.models.places import Places
from dape.modules import is_plain
from dape.ops.attention import attention
from dape.ops.linear import linear, product
from dape.positional.base import PositionalEncoding
from dape.positional.grid import Grid


def attend(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g t d"],
    v: Float[Tensor, "b g t d"],
    pe: PositionalEncoding,
    *,
    x: Float[Tensor, "b t m"],
    cache: Store | None,
    places: Places | None = None,
    causal: bool = True,
    **more: Any,
) -> Float[Tensor, "b h q d"]:
    """Attention of new tokens to each other and to the tokens of a cache, to which they are added.

    ``x`` is what q, k and v were projected from; encodings may read features of it. The cache stores rotated keys if
    their rotation does not change as the text grows (``pe.rotates_once``).
    """
    features = _features(x, pe, cache, more.get("key_padding_mask"))
    if cache is None:
        return attention(q, k, v, pe, causal=causal, features=features, **more)
    if pe.rotates_once:
        grid = _grid_of_new(q, k, cache, places, causal)
        if features is not None:
            grid = replace(grid, q_features=features[:, -q.shape[2] :], k_features=features)
        q, k = pe.rotate(q, k, grid)
    if features is None:
        k, v = cache.append(k, v)
    else:
        k, v = cache.append(k, v, features)
        features = cache.features()
    more = {"rotated": pe.rotates_once, "memory": cache.lags, "features": features, **more}
    return attention(q, k, v, pe, causal=causal, **more)


def _features(x: Tensor, pe: PositionalEncoding, cache: Store | None, mask: Tensor | None) -> Tensor | None:
    """The features of the new tokens that the encoding reads; None if it reads none."""
    if not (isinstance(pe, PositionalEncoding) and pe.needs_features):  # attention refuses what is not an encoding
        return None
    past = None if cache is None or not cache.length else cache.features(last=1)[:, 0]
    return pe.features(x, past=past, padding=None if mask is None else mask[:, -x.shape[1] :])


def _grid_of_new(q: Tensor, k: Tensor, cache: Store, places: Places | None, causal: bool) -> Grid:
    """The grid of the new tokens among themselves."""
    if places is not None:
        return places.grid_of_new(q.shape[2], k.shape[2], causal=causal)
    positions = torch.arange(cache.length, cache.length + k.shape[2], device=k.device)
    return Grid.at(positions[-q.shape[2] :], positions, causal=causal)


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
        self,
        x: Float[Tensor, "b t m"],
        pe: PositionalEncoding,
        cache: Store | None = None,
        last: int | None = None,
        places: Places | None = None,
    ) -> Float[Tensor, "b q m"]:
        """With ``last``, the output of the last tokens only: the others serve as keys and values."""
        q, k, v = self.project(x, last)
        more = {} if places is None else places.for_attention(pe, q.shape[2])
        y = attend(q, k, v, pe, x=x, cache=cache, places=places, causal=self.causal, **more)
        return linear(self.out, y.transpose(1, 2).flatten(2))

    def project(self, x: Float[Tensor, "b t m"], last: int | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of the last tokens (None: of all), keys and values of all, split into heads."""
        if last is None or last >= x.shape[1] or not is_plain(self.qkv, nn.Linear):
            q, k, v = self.split(linear(self.qkv, x), 3)
            return q if last is None else q[:, :, -last:], k, v
        width, bias = x.shape[2], self.qkv.bias
        q_bias, kv_bias = (None, None) if bias is None else (bias[:width], bias[width:])
        (q,) = self.split(product(x[:, -last:], self.qkv.weight[:width], q_bias), 1)
        k, v = self.split(product(x, self.qkv.weight[width:], kv_bias), 2)
        return q, k, v

    def split(self, x: Float[Tensor, "b t n"], parts: int) -> list[Float[Tensor, "b h t d"]]:
        # Unbound before the transposition: the backward pass then stacks their gradients in the layer's own layout.
        return [part.transpose(1, 2) for part in x.unflatten(-1, (parts, self.heads, -1)).unbind(2)]


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int, activation: Callable[[Tensor], Tensor] = nn.functional.gelu) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.activation = activation

    def forward(self, x: Float[Tensor, "b t m"]) -> Float[Tensor, "b t m"]:
        return linear(self.down, self.activation(linear(self.up, x)))
