"""The model of the Chomsky benchmark: an encoder that reads the question and writes the whole answer in one pass.

    input tokens, computation tokens (none by default), one placeholder per output token

x = sqrt(m) E[token];   y = norm(x + drop(attention(x))),   x' = norm(y + drop(feed_forward(y)))   in every layer;
a linear head on the output placeholders. No causal mask, no final norm, no biases in attention; feed-forward of 4 times
the width with ReLU. Weights are drawn as in DeepMind's framework: normal with standard deviation 1 / sqrt(inputs), or
0.02 for the embeddings, truncated at two standard deviations; biases 0.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dape.models.config import DecoderConfig
from dape.models.decoder import new_encoding, own_encodings
from dape.models.dropout import drop
from dape.models.layers import FeedForward, SelfAttention
from dape.ops.linear import linear
from dape.positional.base import PositionalEncoding
from dape.positional.catalogue import find, shared_by_layers
from dape.positional.layers import Affine
from dape.positional.learned import Learned
from dape.positional.randomized import Randomized

EMBEDDING_STD = 0.02


class Block(nn.Module):
    def __init__(self, shape: DecoderConfig, dropout: float) -> None:
        super().__init__()
        self.attention = SelfAttention(shape.width, shape.heads, bias=False, causal=False)
        self.norm1 = nn.LayerNorm(shape.width)
        self.feed_forward = FeedForward(shape.width, 4 * shape.width, nn.functional.relu)
        self.norm2 = nn.LayerNorm(shape.width)
        self.dropout = dropout

    def forward(
        self, x: Float[Tensor, "b t m"], pe: PositionalEncoding, noise: torch.Generator | None, last: int | None
    ) -> Float[Tensor, "b t m"]:
        """With ``last``, compute the last tokens only; the others are keys and values. ``noise`` turns dropout on."""
        y = self.attention(x, pe, last=last)
        x = self.norm1((x if last is None else x[:, -last:]) + drop(y, self.dropout, noise))
        return self.norm2(x + drop(self.feed_forward(x), self.dropout, noise))


class Encoder(nn.Module):
    def __init__(self, shape: DecoderConfig, *, outputs: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.shape, self.dropout = shape, dropout
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape, dropout) for _ in range(shape.layers))
        self.head = nn.Linear(shape.width, outputs)
        truncated_normal_(self.embedding.weight, EMBEDDING_STD)
        haiku_init_(self)
        # Last, so that with the same seed models that differ in their encoding have the same other weights.
        self.encodings = nn.ModuleList(
            self._new_encoding() for _ in range(1 if shared_by_layers(shape.encoding) else shape.layers)
        )

    def _new_encoding(self) -> PositionalEncoding:
        pe = new_encoding(self.shape)
        haiku_init_(pe)
        for part in pe.modules():
            if isinstance(part, Learned):
                truncated_normal_(part.table, 1.0)
        return pe

    def forward(
        self,
        tokens: Int[Tensor, "b t"],
        outputs: int,
        *,
        encodings: list[PositionalEncoding] | None = None,
        noise: torch.Generator | None = None,
    ) -> Float[Tensor, "b o c"]:
        """Logits of the last ``outputs`` tokens. Dropout is on if there is a generator ``noise`` to draw it from."""
        encodings = self.drawn_encodings(tokens.shape[1]) if encodings is None else encodings
        x = self.embedding(tokens) * math.sqrt(self.shape.width)
        x = encodings[0].embed(x, torch.arange(tokens.shape[1], device=tokens.device))
        if self.embeds_positions:
            x = drop(x, self.dropout, noise)
        for index, block in enumerate(self.blocks):
            last = outputs if index == len(self.blocks) - 1 else None
            x = block(x, encodings[index % len(encodings)], noise, last)
        return linear(self.head, x[:, -outputs:])

    @property
    def embeds_positions(self) -> bool:
        """Whether positions are added to embeddings. Only then is there dropout on their sum."""
        return find(self.shape.encoding).hook == "embed"

    def drawn_encodings(self, length: int, generator: torch.Generator | None = None) -> list[PositionalEncoding]:
        """The encodings of all layers. Randomised ones draw other positions in every layer, anew at every call."""
        encodings = own_encodings(self.encodings)
        if len(encodings) == 1 and not self.embeds_positions:
            encodings *= self.shape.layers
        return [pe.draw(length, generator) if isinstance(pe, Randomized) else pe for pe in encodings]

    def project_(self) -> None:
        """Put constrained parameters of the encodings back into range; call after every optimizer step."""
        for pe in own_encodings(self.encodings):
            pe.project_()


# Weights -------------------------------------------------------------------------------------------------------------


def haiku_init_(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, nn.Linear | Affine):
            truncated_normal_(part.weight, 1 / math.sqrt(part.in_features))
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def truncated_normal_(weight: Tensor, std: float) -> None:
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)
