"""The library's attention masks and position ids as places of our own."""

import torch
from torch import Tensor

from dape.models.places import Places


def places_of(
    attention_mask: Tensor | None, position_ids: Tensor | None, tokens: Tensor, *, past: int, cached: bool
) -> Places | None:
    """None if all texts simply begin at 0, which is faster.

    The mask decides where tokens stand. Position ids may say the same, or where packed documents begin.
    """
    padding = _padding(attention_mask, tokens, past)
    places = None if padding is None else Places.beside(padding)
    compiling = torch.compiler.is_compiling()  # values cannot be compared then
    if position_ids is None or (compiling and cached):
        return places
    if position_ids.shape[-1] != tokens.shape[1]:
        raise ValueError(f"{tokens.shape[1]} tokens, but position_ids of shape {list(position_ids.shape)}")
    given = position_ids.expand(len(tokens), -1).to(tokens.device)
    if compiling:
        return Places.packed(given, padding)
    if _agree(given, places, padding, past):
        return places
    if cached:
        raise ValueError(
            "position_ids other than those that follow from attention_mask (packed documents, for instance) are "
            "possible only without a cache: pass use_cache=False and no past_key_values"
        )
    return Places.packed(given, padding)


def _padding(mask: Tensor | None, tokens: Tensor, past: int) -> Tensor | None:
    """[batch, keys], True at padding; None without any."""
    if mask is None:
        return None
    expected = (len(tokens), past + tokens.shape[1])
    if mask.dim() != 2 or tuple(mask.shape) != expected:
        cached = f", {past} of them in the cache" if past else ""
        raise ValueError(
            f"attention_mask must be [batch, tokens] = {list(expected)}{cached}, 1 at text and 0 at padding; "
            f"got {list(mask.shape)}. Attention is causal without any mask; other masks are not supported"
        )
    padding = mask == 0
    if not torch.compiler.is_compiling() and not bool(padding.any()):
        return None
    return padding.to(tokens.device)


def _agree(given: Tensor, places: Places | None, padding: Tensor | None, past: int) -> bool:
    """Whether position ids agree with the mask on all text tokens. Those of padding do not matter."""
    new = given.shape[1]
    if places is None or padding is None:
        return bool((given == torch.arange(past, past + new, device=given.device)).all())
    return bool(((given == places.of_last(new)) | padding[:, -new:]).all())
