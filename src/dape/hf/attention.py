"""Our operator under the library's attention interface, with a mask of our own.

The library builds one mask per forward pass and hands it to every layer. Ours is a table [batch, keys] of what is text
and what is padding, cut at the last query: how far the queries reach is then its width, also with a cache of fixed size
whose end is still empty. Without any padding it has no rows: a look for it in every layer would wait for a GPU each
time. That attention is causal the operator knows itself.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function

from dape.models.places import Places
from dape.ops.attention import attention
from dape.positional.base import require_encoding

NAME = "dape"
"""Of the implementation, as in ``model.set_attn_implementation``."""
NO_WEIGHTS = "attention weights are never whole in memory here; dape.intermediates and `dape visualize` show them"
PACKED = (
    "an adapter of dape works with plain causal attention only; this call has packed sequences (position_ids that "
    "start anew: pad instead)"
)
PLACE = "dape"
"""The attribute of an attention layer that holds its encoding."""


def text_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    device: torch.device | None = None,
    **_: Any,
) -> Tensor:
    """[batch, keys up to the last query]: True where there is text; [0, keys] if that is everywhere."""
    if mask_function is not causal_mask_function:
        raise ValueError(
            f"{PACKED}, a sliding window or a mask function of its own. Under torch.compile the library supposes "
            "packed sequences unless an attention_mask is given"
        )
    end = int(q_offset) + q_length - int(kv_offset)
    if attention_mask is None or attention_mask.numel() == 0:
        return torch.ones(0, end, dtype=torch.bool, device=device)
    given = attention_mask[:, :end].bool()
    given = nn.functional.pad(given, (0, end - given.shape[1]), value=True)
    return given[:0] if bool(given.all()) else given


def starts_anew(positions: Tensor, mask: Tensor | dict[str, Tensor] | None) -> bool:
    """Whether text follows text at a smaller position; those of padding do not matter."""
    back = positions[..., 1:] < positions[..., :-1]
    if isinstance(mask, dict):  # of generate with a static cache: masks of ours, by the kind of layer
        mask = next(iter(mask.values()))
    if mask is not None and mask.dim() == 2 and len(mask):
        text = mask[:, -positions.shape[-1] :].bool()
        back = back & text[:, 1:] & text[:, :-1]
    return bool(back.any())


def dape_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """[b, h, t, d] in, [b, t, h, d] out; q and k come rotated if the model rotates."""
    pe = getattr(module, PLACE, None)
    if pe is None:
        raise ValueError(f"{type(module).__name__} has no adapter; call dape.hf.extend(model, ...)")
    pe = require_encoding(pe, f"{type(module).__name__}.{PLACE}")
    if attention_mask is None or attention_mask.dim() != 2:
        raise ValueError(
            f"attn_implementation {NAME!r} builds its own mask [batch, keys]; a mask of another form was given"
        )
    if dropout:
        raise ValueError("dropout of attention weights is not supported; dape.hf.extend switches it off")
    if query.dtype != value.dtype:  # under autocast rotation is float32; SDPA would round it too
        query, key = query.to(value.dtype), key.to(value.dtype)
    end, width = attention_mask.shape[1], query.shape[-1]
    if scaling is not None and scaling != width**-0.5:
        query = query * (scaling * width**0.5)
    padded = attention_mask.shape[0] > 0
    where = Places.beside(~attention_mask).for_attention(pe, query.shape[2]) if padded else {}
    return attention(query, key[:, :, :end], value[:, :, :end], pe, **where).transpose(1, 2), None


def register() -> None:
    AttentionInterface.register(NAME, dape_attention)
    AttentionMaskInterface.register(NAME, text_mask)
