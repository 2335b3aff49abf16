"""A model of the library where ours is expected: enough of DecoderLM for ``evaluation.perplexity.measure``."""

from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn


class Scorer:
    """Tokens in, hidden states out. The head is separate, so that only scored tokens are projected."""

    def __init__(self, model: nn.Module) -> None:
        library: Any = model
        self._body = library.base_model
        self.embedding: nn.Module = library.get_input_embeddings()
        self.head: nn.Module = library.get_output_embeddings()
        self.encodings: list[Any] = []
        config = library.config
        self.config = SimpleNamespace(vocabulary=config.vocab_size, width=config.hidden_size)

    def drawn_encodings(self, length: int, generator: object = None) -> list[Any]:
        return []

    def hidden(self, tokens: Tensor, *, encodings: object = None, last: int | None = None) -> Tensor:
        states = self._body(input_ids=tokens, use_cache=False).last_hidden_state
        return states if last is None else states[:, -last:]
