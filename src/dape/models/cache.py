"""Keys and values of earlier tokens, so that decoding a token costs one row of attention."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from dape.ops.attention.memory import LagMemory


@runtime_checkable
class Store(Protocol):
    """What a layer asks of its cache. Other libraries' caches are plugged in here."""

    lags: LagMemory
    """Tables of the bias, for :func:`dape.attention`."""

    @property
    def length(self) -> int: ...

    def append(
        self, k: Float[Tensor, "b g t d"], v: Float[Tensor, "b g t d"]
    ) -> tuple[Float[Tensor, "b g k d"], Float[Tensor, "b g k d"]]:
        """Store new keys and values and return all so far."""
        ...


class LayerCache:
    """One layer's values and keys. These are rotated, unless their rotation may change as the text grows."""

    def __init__(self) -> None:
        self._k: Tensor | None = None
        self._v: Tensor | None = None
        self.length = 0
        self.lags = LagMemory()

    def append(
        self, k: Float[Tensor, "b g t d"], v: Float[Tensor, "b g t d"]
    ) -> tuple[Float[Tensor, "b g k d"], Float[Tensor, "b g k d"]]:
        """Store new keys and values and return all so far. Room is doubled when it runs out: linear cost in total."""
        end = self.length + k.shape[2]
        if self._k is None or self._v is None or end > self._k.shape[2]:
            self._k, self._v = (self._grown(old, new, end) for old, new in ((self._k, k), (self._v, v)))
        self._k[:, :, self.length : end] = k
        self._v[:, :, self.length : end] = v
        self.length = end
        return self._k[:, :, :end], self._v[:, :, :end]

    def _grown(self, old: Tensor | None, new: Tensor, needed: int) -> Tensor:
        room = max(needed, 2 * self.length, 64)
        grown = new.new_empty(*new.shape[:2], room, new.shape[3])
        if old is not None:
            grown[:, :, : self.length] = old[:, :, : self.length]
        return grown


class Cache:
    """One store per layer: a :class:`LayerCache`, unless others are given."""

    def __init__(self, layers: int | Sequence[Store]) -> None:
        self.layers = [LayerCache() for _ in range(layers)] if isinstance(layers, int) else layers

    @property
    def length(self) -> int:
        return self.layers[0].length if self.layers else 0

    def positions(self, tokens: int, device: torch.device) -> Tensor:
        """Where the next tokens stand."""
        return torch.arange(self.length, self.length + tokens, device=device)
