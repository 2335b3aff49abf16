"""The encoder's self-attention, in fewer products where tokens are of few kinds or answers are few."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dape.models.layers import SelfAttention, attend
from dape.ops.attention.reference import masked_softmax
from dape.ops.products.linear import Linear, linear
from dape.positional.base import PositionalEncoding
from dape.positional.grid import Grid


@dataclass(frozen=True)
class Repeated:
    """Tokens of few kinds, such as the embeddings of a small vocabulary: what concerns a token alone is computed once
    for each kind."""

    kinds: Float[Tensor, "n m"]
    which: Int[Tensor, "b t"]


class EncoderAttention(SelfAttention):
    Layer = Linear
    linear = staticmethod(linear)

    def __init__(self, width: int, heads: int, *, bias: bool = False, causal: bool = False) -> None:
        super().__init__(width, heads, bias=bias, causal=causal)

    def of_kinds(self, x: Repeated, pe: PositionalEncoding, last: int | None = None) -> Float[Tensor, "b t m"]:
        """The same without a product per token. A query's output is a mixture of what each kind has to give, and how
        much of each is what attention finds with values that are 1 in the place of their kind."""
        count, width = len(x.kinds), self.out.in_features // self.heads
        by_kind = self.qkv(x.kinds).unflatten(-1, (3, self.heads, width))
        queries = x.which if last is None else x.which[:, -last:]
        q, k = (by_kind[:, i].flatten(1) for i in range(2))
        (q,), (k,) = (self.split(nn.functional.embedding(w, t), 1) for w, t in ((queries, q), (x.which, k)))
        if count > width:
            (v,) = self.split(nn.functional.embedding(x.which, by_kind[:, 2].flatten(1)), 1)
            y = attend(q, k, v, pe, cache=None, causal=self.causal)
            return self.out(y.transpose(1, 2).flatten(2))
        v = torch.eye(count, width, dtype=q.dtype, device=q.device)[x.which]  # as wide as q: some kernels ask for it
        shares = attend(q, k, v.unsqueeze(1).expand_as(k), pe, cache=None, causal=self.causal)[..., :count]
        gives = torch.einsum("nhd,mhd->mhn", by_kind[:, 2], self.out.weight.unflatten(1, (self.heads, width)))
        return self.linear(shares.transpose(1, 2).flatten(2), gives.flatten(1), self.out.bias)

    def of_few(self, x: Float[Tensor, "b t m"], pe: PositionalEncoding, last: int) -> Float[Tensor, "b t m"]:
        """The same for the few last tokens, without keys and values of all: as q . (Wk x) = (q Wk) . x, queries meet
        the tokens themselves, and values are made of sums of tokens. For encodings that read nothing but scores."""
        assert pe.reads_scores_alone and self.qkv.bias is None
        width = self.out.in_features // self.heads
        to_q, to_k, to_v = self.qkv.weight.unflatten(0, (3, self.heads, width))
        pe, grid = pe.settle(Grid.of_length(last, x.shape[1], causal=self.causal, device=x.device))
        q = torch.einsum("blm,hdm->bhld", x[:, -last:], to_q) / math.sqrt(width)
        asking = torch.einsum("bhld,hdm->bhlm", q, to_k).flatten(1, 2)
        scores = (asking @ x.transpose(1, 2)).unflatten(1, (self.heads, last))
        weights = masked_softmax(pe.logits(scores, q, x.unsqueeze(1), grid), grid.visible())
        found = (weights.flatten(1, 2) @ x).unflatten(1, (self.heads, last))
        return self.out(torch.einsum("bhlm,hdm->blhd", found, to_v).flatten(2))
