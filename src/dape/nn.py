"""Layers for a model of your own, without any other library.

``SelfAttention`` replaces ``torch.nn.MultiheadAttention(..., batch_first=True)``, and adds an encoding of positions.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dape.config.names import OtherNames, takes_other_names
from dape.models.cache import LayerCache
from dape.models.layers import attend
from dape.ops.attention.operator import Impl
from dape.ops.linear import linear
from dape.positional.build import build

__all__ = ["LayerCache", "SelfAttention"]


@takes_other_names
class SelfAttention(OtherNames, nn.Module):
    """Multi-head self-attention with any encoding of the catalogue: ``[batch, tokens, model_dim]`` in and out.

    Encodings that are added to embeddings (sinusoidal, learned) do nothing here: call
    ``layer.encoding.embed(x, positions)`` where the embeddings are made.

    Args:
        model_dim: width of input and output; ``width`` and ``hidden_size`` are other names of it.
        num_heads: query heads.
        encoding: a name of :func:`dape.encodings`.
        train_length: longest sequence seen in training.
        causal: hide the future.
        num_kv_heads: heads of keys and values, if fewer than ``num_heads`` (grouped-query attention).
        bias: whether the four linear layers have one.
        impl: as in :func:`dape.attention`.
        options: of the encoding, such as ``hidden=16``.

    Raises:
        ValueError: sizes that do not fit each other, or an encoding that is not known.

    Examples:
        >>> layer = SelfAttention(32, 4, "dape-alibi", train_length=16)
        >>> layer(torch.randn(2, 40, 32)).shape
        torch.Size([2, 40, 32])
    """

    def __init__(
        self,
        model_dim: int,
        num_heads: int,
        encoding: str = "dape-kerple",
        *,
        train_length: int,
        causal: bool = True,
        num_kv_heads: int | None = None,
        bias: bool = True,
        impl: Impl = "auto",
        **options: Any,
    ) -> None:
        super().__init__()
        groups = num_heads if num_kv_heads is None else num_kv_heads
        if model_dim % num_heads:
            size = self.written_as("model_dim")
            raise ValueError(f"{size} {model_dim} cannot be divided into {num_heads} heads of equal width")
        if groups < 1 or num_heads % groups:
            raise ValueError(f"num_heads {num_heads} is not a multiple of num_kv_heads {num_kv_heads}")
        self.causal, self.head_dim = causal, model_dim // num_heads
        self.impl: Impl = impl
        self.q = nn.Linear(model_dim, model_dim, bias=bias)
        self.k, self.v = (nn.Linear(model_dim, groups * self.head_dim, bias=bias) for _ in range(2))
        self.out = nn.Linear(model_dim, model_dim, bias=bias)
        self.encoding = build(
            encoding,
            num_heads=num_heads,
            head_dim=self.head_dim,
            model_dim=model_dim,
            train_length=train_length,
            **options,
        )

    @classmethod
    def from_multihead(cls, layer: nn.MultiheadAttention, encoding: str = "nope", **settings: Any) -> "SelfAttention":
        """A layer with the weights of PyTorch's. With ``encoding="nope", causal=False`` it computes the same function;
        by default this layer is causal, while PyTorch's is only with a mask. Dropout is not copied.

        Args:
            layer: PyTorch's layer, with ``batch_first=True``.
            encoding: positional encoding, a name from ``dape.encodings()``.
            **settings: other arguments of :class:`SelfAttention`; ``train_length`` is required.

        Raises:
            ValueError: if the layer has another order of axes, or parts that this class does not have.

        Examples:
            >>> theirs = torch.nn.MultiheadAttention(32, 4, batch_first=True)
            >>> ours = SelfAttention.from_multihead(theirs, train_length=16, causal=False)
            >>> x = torch.randn(2, 40, 32)
            >>> torch.allclose(ours(x), theirs(x, x, x)[0], atol=1e-5)
            True
        """
        if not layer.batch_first:
            raise ValueError(
                "the layer has batch_first=False and takes [tokens, batch, width], SelfAttention takes "
                "[batch, tokens, width]: transpose inputs and outputs, and set layer.batch_first = True"
            )
        if layer.in_proj_weight is None or layer.bias_k is not None or layer.add_zero_attn:
            raise ValueError("only layers with kdim = vdim = embed_dim, without add_bias_kv and add_zero_attn")
        has_bias = layer.in_proj_bias is not None
        made = cls(layer.embed_dim, layer.num_heads, encoding, bias=has_bias, **settings)
        with torch.no_grad():
            for own, weight in zip((made.q, made.k, made.v), layer.in_proj_weight.chunk(3), strict=True):
                own.weight.copy_(weight)
            if has_bias:
                for own, bias in zip((made.q, made.k, made.v), layer.in_proj_bias.chunk(3), strict=True):
                    own.bias.copy_(bias)
            made.out.load_state_dict(layer.out_proj.state_dict())
        return made.to(layer.in_proj_weight)

    def forward(
        self,
        x: Float[Tensor, "b t m"],
        *,
        key_padding_mask: Bool[Tensor, "b k"] | None = None,
        attn_mask: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "b t m"]:
        """Attention of all tokens of ``x``.

        Args:
            x: the tokens; with a ``cache``, the new tokens after those that it holds.
            key_padding_mask: true at padding, as in PyTorch; for the tokens of the cache and the new ones.
            attn_mask: the causal mask, as PyTorch's layer takes it, or (for ``causal=False``) one that hides nothing.
            cache: keys and values of earlier tokens, to which the new ones are added.

        Raises:
            ValueError: on any other ``attn_mask``.
        """
        causal = self.causal if attn_mask is None else _is_causal(attn_mask, x.shape[1], self.causal)
        q, k, v = (
            linear(layer, x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        more = {"key_padding_mask": key_padding_mask, "impl": self.impl}
        y = attend(q, k, v, self.encoding, x=x, cache=cache, causal=causal, **more)
        return linear(self.out, y.transpose(1, 2).flatten(2))


def _is_causal(mask: Tensor, tokens: int, causal: bool) -> bool:
    """Whether a mask of PyTorch (True or -inf: hidden) is the causal one. ValueError unless it is, or hides nothing."""
    masked = mask if mask.dtype == torch.bool else mask == -torch.inf
    if mask.dtype != torch.bool and bool(((mask != 0) & ~masked).any()):
        raise ValueError(
            "attn_mask has numbers other than 0 and -inf, which would be added to the scores: a bias belongs into the "
            "encoding (dape.register adds your own)"
        )
    future = torch.ones(tokens, tokens, dtype=torch.bool, device=mask.device).triu(1)
    if mask.shape[-2:] == future.shape:
        if bool((masked == future).all()):
            return True
        if not (causal or bool(masked.any())):
            return False
    raise ValueError(
        f"attn_mask of shape {list(mask.shape)} is neither the causal mask of {tokens} tokens nor (for causal=False) "
        "one that hides nothing. Use key_padding_mask for padding; `causal` is chosen when the layer is created"
    )
