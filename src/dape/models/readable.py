"""The interface of a language model that can be evaluated, which models of other libraries implement too."""

from typing import Any, Protocol

import torch
from torch import Tensor


class Readable(Protocol):
    """The part of :class:`~dape.models.decoder.DecoderLM` that evaluation uses."""

    embedding: Any
    encodings: Any
    head: Any
    config: Any
    """With ``vocabulary`` and ``width``."""

    def drawn_encodings(self, length: int, generator: torch.Generator | None = None) -> list[Any]: ...

    def hidden(self, tokens: Tensor, *, encodings: list[Any] | None = None, last: int | None = None) -> Tensor: ...
