"""Our operator under the library's attention interface, with a mask of our own.

The library builds one mask per forward pass and hands it to every layer. Ours is a
table [batch, tokens so far] of what is text and what is padding. Its width says how far the queries reach, also with a
cache of fixed size whose end is still empty, and with a cache that keeps the last keys only. It has no rows if there is
no padding: looking for padding in every layer would wait for the GPU each time. For packed sequences it holds the
number of each token's document. The operator knows that attention is causal; each layer passes its window.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function

from dape.hf.windows import bounded_attention
from dape.models.places import Places, reads_distances_only
from dape.ops.attention import attention
from dape.positional.base import PositionalEncoding, require_encoding

NAME = "dape"
"""Name of the implementation, for ``model.set_attn_implementation``."""
NO_WEIGHTS = "attention weights are never whole in memory here; dape.intermediates and `dape visualize` show them"
PACKED = (
    "packed sequences (position_ids that start anew) are possible only without a cache and without an attention_mask: "
    "pass use_cache=False, or pad instead"
)
OTHER_MASK = (
    "an adapter of dape works with causal attention, its window and packed sequences; this call has a mask function of "
    "its own"
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
    local_size: int | None = None,
    device: torch.device | None = None,
    **_: Any,
) -> Tensor:
    """[batch, tokens so far]: True where there is text, or each token's document in packed sequences. [0, tokens so
    far] if everything is text of one document."""
    end = int(q_offset) + q_length
    if attention_mask is None or attention_mask.numel() == 0:
        if mask_function is not causal_mask_function:
            documents = _documents(mask_function, local_size, batch_size, end, device)
            if documents is not None:
                return documents
        return torch.ones(0, end, dtype=torch.bool, device=device)
    if mask_function is not causal_mask_function:
        _documents(mask_function, local_size, 1, end, device)
    given = attention_mask[:, :end].bool()
    given = nn.functional.pad(given, (0, end - given.shape[1]), value=True)
    if torch.compiler.is_compiling():  # values cannot be looked at
        return given
    return given[:0] if bool(given.all()) else given


def _documents(
    mask_function: Callable[..., Any], window: int | None, batch: int, end: int, device: torch.device | None
) -> Tensor | None:
    """Each token's document, counted from 1; None if there is only one. A document begins where neighbours do not see
    each other. Mask functions have no names, so samples check that this one is causal within its window and its
    documents."""
    at, rows = torch.arange(end, device=device), torch.arange(batch, device=device).unsqueeze(1)
    seen = torch.as_tensor(mask_function(rows, 0, at[1:], at[:-1]), device=device).expand(batch, end - 1)
    documents = nn.functional.pad((~seen).long().cumsum(1), (1, 0)) + 1
    if torch.compiler.is_compiling():
        return documents
    queries = torch.linspace(0, end - 1, 17, device=device).long().unsqueeze(1)
    back = torch.tensor([-1, 0, 1, 2, (window or end) - 1, window or end, (window or end) + 1], device=device)
    keys = torch.cat([queries - back, queries // 2], dim=1).clamp(0, end - 1)
    first = documents[0]
    expected = (keys <= queries) & (keys > queries - (window or end)) & (first[keys] == first[queries])
    if not bool((torch.as_tensor(mask_function(0, 0, queries, keys), device=device) == expected).all()):
        raise ValueError(OTHER_MASK)
    return documents if bool((documents > 1).any()) else None


def starts_anew(positions: Tensor, mask: Tensor | dict[str, Tensor] | None) -> bool:
    """Whether a text token stands at a smaller position than the text token before it. Positions of padding do not
    matter."""
    back = positions[..., 1:] < positions[..., :-1]
    if isinstance(mask, dict):  # of generate with a static cache: masks of ours, by the kind of layer
        mask = next(iter(mask.values()))
    if mask is not None and mask.dim() == 2 and len(mask):
        text = mask[:, -positions.shape[-1] :].bool()
        back = back & text[:, 1:] & text[:, :-1]
    return bool(back.any())


def encoding_at(layer: nn.Module) -> PositionalEncoding:
    """The encoding of an attention layer. With ``modules_to_save=["dape"]`` peft trains a copy and keeps the original:
    this is the copy, unless adapters are disabled."""
    found: Any = getattr(layer, PLACE, None)
    if found is None:
        raise ValueError(f"{type(layer).__name__} has no adapter; call dape.hf.extend(model, ...)")
    if isinstance(getattr(found, "modules_to_save", None), nn.ModuleDict):
        active = found.active_adapters
        disabled = found.disable_adapters or not active
        found = found.original_module if disabled else found.modules_to_save[active[0]]
    return require_encoding(found, f"{type(layer).__name__}.{PLACE}")


def dape_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """[b, h, t, d] in, [b, t, h, d] out. If the model rotates, q and k are rotated already."""
    pe = encoding_at(module)
    if attention_mask is None or attention_mask.dim() != 2:
        raise ValueError(
            f"attn_implementation {NAME!r} builds its own mask [batch, keys]; a mask of another form was given"
        )
    if dropout:
        raise ValueError("dropout of attention weights is not supported; dape.hf.extend switches it off")
    if more.get("position_bias") is not None:
        raise ValueError(
            f"{type(module).__name__} adds a position_bias of its own, which an adapter of dape does not know: the "
            "bias belongs into the encoding, dape.hf.extend(model, 'dape-t5') for instance"
        )
    if query.dtype != value.dtype:  # under autocast rotation is float32; SDPA would round it too
        query, key = query.to(value.dtype), key.to(value.dtype)
    end, width = attention_mask.shape[1], query.shape[-1]
    if scaling is not None and scaling != width**-0.5:
        query = query * (scaling * width**0.5)
    keys = min(end, key.shape[2])
    key, value = key[:, :, :keys], value[:, :, :keys]
    places = _places(attention_mask, keys)
    if softcap is not None or (sliding_window is not None and keys > sliding_window):
        at = _run(end, key) if places is None else places
        return bounded_attention(query, key, value, pe, at, cap=softcap, window=sliding_window).transpose(1, 2), None
    if places is None and keys < end and not reads_distances_only(pe):
        places = _run(end, key)
    where = {} if places is None else places.for_attention(pe, query.shape[2])
    return attention(query, key, value, pe, **where).transpose(1, 2), None


def _places(table: Tensor, keys: int) -> Places | None:
    """Places of the last keys; None if everything is text of one document."""
    if not table.shape[0]:
        return None
    if table.dtype == torch.bool:
        return Places.beside(~table).last(keys)
    index = torch.arange(table.shape[1], device=table.device)
    starts = nn.functional.pad(table[:, 1:] != table[:, :-1], (1, 0), value=True)
    positions = index - torch.where(starts, index, 0).cummax(1).values
    return Places(positions=positions, documents=table, unbroken=True).last(keys)


def _run(end: int, key: Tensor) -> Places:
    """Places of consecutive tokens, the first of which the cache has dropped."""
    positions = torch.arange(end - key.shape[2], end, device=key.device)
    return Places(positions=positions.expand(len(key), -1), unbroken=True)


def register() -> None:
    AttentionInterface.register(NAME, dape_attention)
    AttentionMaskInterface.register(NAME, text_mask)
