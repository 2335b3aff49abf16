"""What tasks and tests need of a language model, whoever made it."""

from typing import Any, Protocol

import torch
from torch import Tensor


class Readable(Protocol):
    """What of :class:`~dape.models.decoder.DecoderLM` is needed to measure; other models can be made to look so."""

    embedding: Any
    encodings: Any
    head: Any
    config: Any
    """With ``vocabulary`` and ``width``."""

    def drawn_encodings(self, length: int, generator: torch.Generator | None = None) -> list[Any]: ...

    def hidden(self, tokens: Tensor, *, encodings: list[Any] | None = None, last: int | None = None) -> Tensor: ...
