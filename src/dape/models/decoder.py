"""The paper's language model: a pre-norm GPT decoder with any positional encoding of the catalogue.

x + attention(norm1 x), x + feed_forward(norm2 x), final norm, output head not tied to the embeddings; exact GELU,
feed-forward of 4 times the width, biases everywhere except in the head, no dropout.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dape.models.cache import Cache, Store
from dape.models.config import DecoderConfig
from dape.models.init import small_init_, wang_init_
from dape.models.layers import FeedForward, SelfAttention
from dape.models.places import Places
from dape.ops.linear import linear
from dape.positional.base import PositionalEncoding, require_encoding
from dape.positional.build import build
from dape.positional.catalogue import shared_by_layers
from dape.positional.randomized import Randomized

Recompute = Callable[..., Tensor]
"""Like ``torch.utils.checkpoint.checkpoint``, it takes a module and its arguments."""


class Block(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = SelfAttention(config.width, config.heads)
        self.norm2 = nn.LayerNorm(config.width)
        self.feed_forward = FeedForward(config.width, 4 * config.width)

    def forward(
        self,
        x: Tensor,
        pe: PositionalEncoding,
        cache: Store | None = None,
        last: int | None = None,
        places: Places | None = None,
    ) -> Tensor:
        y = self.attention(self.norm1(x), pe, cache, last, places)
        x = (x if last is None else x[:, -last:]) + y
        return x + self.feed_forward(self.norm2(x))


def new_encoding(config: DecoderConfig) -> PositionalEncoding:
    """The encoding of one layer."""
    return build(
        config.encoding,
        num_heads=config.heads,
        head_dim=config.head_dim,
        model_dim=config.width,
        train_length=config.train_length,
        **config.encoding_options,
    )


def new_encodings(config: DecoderConfig) -> list[PositionalEncoding]:
    """An encoding for every layer, or a single one that all layers share."""
    shared = shared_by_layers(config.encoding) if config.share_encoding is None else config.share_encoding
    return [new_encoding(config) for _ in range(1 if shared else config.layers)]


def own_encodings(modules: nn.ModuleList) -> list[PositionalEncoding]:
    return [require_encoding(module, f"encodings[{i}]") for i, module in enumerate(modules)]


class Decoder(nn.Module):
    """The network, shared by :class:`DecoderLM` and the model for the transformers library."""

    block: type[Block] = Block

    def build(self, config: DecoderConfig, *, head: bool = True) -> None:
        """Create all layers and initialise their weights."""
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(self.block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False) if head else None
        self._initialise(config)
        # Last, so that with the same seed models that differ in their encoding have the same other weights.
        self.encodings = nn.ModuleList(new_encodings(config))

    def _initialise(self, config: DecoderConfig) -> None:
        width, layers = config.width, config.layers
        for layer in (self.embedding, self.head):
            if layer is not None:
                small_init_(layer, width)
        for block in self.blocks:
            assert isinstance(block, Block)
            small_init_(block.attention.qkv, width)
            small_init_(block.feed_forward.up, width)
            wang_init_(block.attention.out, width, layers)
            wang_init_(block.feed_forward.down, width, layers)

    def recomputing(self) -> Recompute | None:
        """What calls a block so that the backward pass recomputes it; None to call it directly."""
        return None

    def hidden(
        self,
        tokens: Int[Tensor, "b t"] | Float[Tensor, "b t m"],
        *,
        cache: Cache | None = None,
        encodings: list[PositionalEncoding] | None = None,
        last: int | None = None,
        places: Places | None = None,
        recompute: Recompute | None = None,
        seen: list[Tensor] | None = None,
    ) -> Float[Tensor, "b q m"]:
        """Final hidden states. The head is separate, so that evaluation projects only the tokens it scores.

        Args:
            tokens: token ids, or their embeddings.
            cache: keys and values of the tokens before, for decoding.
            encodings: as from :meth:`drawn_encodings`, which is the default.
            last: return the states of the last tokens only. The last block then computes no queries for the others.
            places: positions, padding and documents of padded and packed batches.
            recompute: calls a block so that the backward pass recomputes it.
            seen: a list that receives the input of every block.
        """
        length = tokens.shape[1]
        encodings = self.drawn_encodings(length) if encodings is None else encodings
        recompute = self.recomputing() if recompute is None else recompute
        positions = places.of_last(length) if places else (cache or Cache(0)).positions(length, tokens.device)
        x = encodings[0].embed(tokens if tokens.is_floating_point() else self.embedding(tokens), positions)
        for index, block in enumerate(self.blocks):
            if seen is not None:
                seen.append(x)
            rows = last if index == len(self.blocks) - 1 else None
            args = (x, encodings[index % len(encodings)], cache.layers[index] if cache else None, rows, places)
            x = block(*args) if recompute is None else recompute(block, *args)
        return self.norm(x)

    def drawn_encodings(self, length: int, generator: torch.Generator | None = None) -> list[PositionalEncoding]:
        """The encodings of all layers. Randomised ones share one draw of positions, for one forward pass."""
        encodings = own_encodings(self.encodings)
        first = encodings[0]
        if not isinstance(first, Randomized):
            return encodings
        draw = first.draw(length, generator).fixed_draw
        return [pe.with_draw(draw) for pe in encodings if isinstance(pe, Randomized)]

    def project_(self) -> None:
        """Put constrained parameters of the encodings back into range; call after every optimizer step."""
        for pe in own_encodings(self.encodings):
            pe.project_()


class DecoderLM(Decoder):
    """A decoder-only language model with any encoding of the catalogue: token ids ``[batch, tokens]`` in, logits out.

    Args:
        config: sizes, encoding and its options.

    Raises:
        ValueError: if the encoding is unknown, or cannot be built with these sizes and options.

    Examples:
        >>> model = DecoderLM(DecoderConfig(encoding="dape-alibi", layers=1, width=8, heads=2, vocabulary=5))
        >>> model(torch.tensor([[1, 2, 3]])).shape
        torch.Size([1, 3, 5])
    """

    head: nn.Linear

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.build(config)

    def recomputing(self) -> Recompute | None:
        wanted = self.config.checkpoint_activations and self.training
        return partial(checkpoint, use_reentrant=False) if wanted else None

    def forward(
        self, tokens: Int[Tensor, "b t"] | Float[Tensor, "b t m"], *, head: bool = True, **kwargs: Any
    ) -> Float[Tensor, "b q v"]:
        """Logits, or with ``head=False`` hidden states. ``kwargs`` are arguments of :meth:`hidden`."""
        hidden = self.hidden(tokens, **kwargs)
        return linear(self.head, hidden) if head else hidden
