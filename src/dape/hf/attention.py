"""Our operator under the library's attention interface, with a mask of our own.

The library builds one mask per forward pass and hands it to every layer. Ours is a table [batch, tokens so far] of
what is text and what is padding: its width says how far the queries reach, also with a cache of fixed size whose end is
still empty, and with one that keeps the last keys only. Without any padding it has no rows: a look for it in every
layer would wait for a GPU each time. That attention is causal the operator knows itself; of its window a layer tells.
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
    local_size: int | None = None,
    device: torch.device | None = None,
    **_: Any,
) -> Tensor:
    """[batch, tokens so far]: True where there is text; [0, tokens so far] if that is everywhere."""
    end = int(q_offset) + q_length
    if mask_function is not causal_mask_function and not _is_window(mask_function, local_size, end):
        raise ValueError(
            f"{PACKED} or a mask function of its own. Under torch.compile the library supposes packed sequences unless "
            "an attention_mask is given"
        )
    if attention_mask is None or attention_mask.numel() == 0:
        return torch.ones(0, end, dtype=torch.bool, device=device)
    given = attention_mask[:, :end].bool()
    given = nn.functional.pad(given, (0, end - given.shape[1]), value=True)
    if torch.compiler.is_compiling():  # values cannot be looked at
        return given
    return given[:0] if bool(given.all()) else given


def _is_window(mask_function: Callable[..., Any], window: int | None, end: int) -> bool:
    """Whether a mask hides the future and all but the last ``window`` tokens, and nothing else; by samples, because the
    library tells its functions apart by no name."""
    if window is None:
        return False
    if torch.compiler.is_compiling():
        return True
    queries = torch.linspace(0, end - 1, 17).long().unsqueeze(1)
    keys = torch.cat([queries - torch.tensor([-1, 0, 1, window - 1, window, window + 1]), queries // 2], dim=1)
    keys = keys.clamp(0, end - 1)
    expected = (keys <= queries) & (keys > queries - window)
    return bool((torch.as_tensor(mask_function(0, 0, queries, keys)) == expected).all())


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
    sliding_window: int | None = None,
    softcap: float | None = None,
    **more: Any,
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
    padding = ~attention_mask if attention_mask.shape[0] > 0 else None
    if softcap is not None or (sliding_window is not None and keys > sliding_window):
        positions = _positions(padding, end, query.device)[..., end - keys :]
        padding = None if padding is None else padding[:, end - keys :]
        bounds = {"cap": softcap, "window": sliding_window, "positions": positions, "padding": padding}
        return bounded_attention(query, key, value, pe, **bounds).transpose(1, 2), None
    where: dict[str, Any] = {}
    if padding is not None:
        where = Places.beside(padding).last(keys).for_attention(pe, query.shape[2])
    elif keys < end and not reads_distances_only(pe):
        at = _positions(None, end, query.device)[end - keys :]
        where = {"q_pos": at[-query.shape[2] :], "k_pos": at}
    return attention(query, key, value, pe, **where).transpose(1, 2), None


def _positions(padding: Tensor | None, end: int, device: torch.device) -> Tensor:
    return torch.arange(end, device=device) if padding is None else Places.beside(padding).positions


def register() -> None:
    AttentionInterface.register(NAME, dape_attention)
    AttentionMaskInterface.register(NAME, text_mask)
