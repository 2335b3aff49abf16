"""Keys and values of earlier tokens, so that decoding a token costs one row of attention."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from dape.ops.attention.memory import LagMemory


@runtime_checkable
class Store(Protocol):
    """The interface of a layer's cache, also implemented on top of other libraries' caches."""

    lags: LagMemory
    """Tables of the bias, for :func:`dape.attention`."""

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        ...

    def append(
        self, k: Float[Tensor, "b g t d"], v: Float[Tensor, "b g t d"], features: Float[Tensor, "b t n"] | None = None
    ) -> tuple[Float[Tensor, "b g k d"], Float[Tensor, "b g k d"]]:
        """Store keys, values and (for encodings that read them) features of new tokens; return all keys and values."""
        ...

    def features(self, last: int | None = None) -> Float[Tensor, "b k n"]:
        """Features of all tokens, or of the ``last`` ones. Called only after features were stored."""
        ...


class LayerCache:
    """Values and keys of one layer. Keys are stored rotated, unless their rotation may change as the text grows."""

    def __init__(self) -> None:
        self._k: Tensor | None = None
        self._v: Tensor | None = None
        self._features: Tensor | None = None
        self.length = 0
        self.lags = LagMemory()

    def append(
        self, k: Float[Tensor, "b g t d"], v: Float[Tensor, "b g t d"], features: Float[Tensor, "b t n"] | None = None
    ) -> tuple[Float[Tensor, "b g k d"], Float[Tensor, "b g k d"]]:
        """Store new tokens, return all keys and values. Memory is doubled when it runs out: linear cost in total."""
        end = self.length + k.shape[2]
        self._k, self._v = self._with(self._k, k, end), self._with(self._v, v, end)
        if features is not None:
            self._features = self._with(self._features, features, end)
        self.length = end
        return self._k[:, :, :end], self._v[:, :, :end]

    def features(self, last: int | None = None) -> Float[Tensor, "b k n"]:
        assert self._features is not None
        return self._features[:, 0 if last is None else self.length - last : self.length]

    def _with(self, old: Tensor | None, new: Tensor, end: int) -> Tensor:
        """Put new tokens (on the last axis but one) behind the old ones."""
        if old is None or end > old.shape[-2]:
            grown = new.new_empty(*new.shape[:-2], max(end, 2 * self.length, 64), new.shape[-1])
            if old is not None:
                grown[..., : self.length, :] = old[..., : self.length, :]
            old = grown
        old[..., self.length : end, :] = new
        return old


class Cache:
    """A store for every layer: a :class:`LayerCache`, unless others are given."""

    def __init__(self, layers: int | Sequence[Store]) -> None:
        self.layers = [LayerCache() for _ in range(layers)] if isinstance(layers, int) else layers

    @property
    def length(self) -> int:
        return self.layers[0].length if self.layers else 0

    def positions(self, tokens: int, device: torch.device) -> Tensor:
        """Positions of the next tokens."""
        return torch.arange(self.length, self.length + tokens, device=device)
