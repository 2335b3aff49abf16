"""The families of models an adapter fits: where their attention layers are, and what they know of positions.

Most call the library's attention interface, where ``dape.hf.attention`` takes over. Falcon, Bloom and MPT compute
attention inside their layers; for these the table names a ``forward`` that does the same up to the scores.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from dape.hf.attention import dape_attention


@dataclass(frozen=True, kw_only=True)
class Family:
    layers: str = "layers"
    """Where the layers are inside the base model."""
    attention: str = "self_attn"
    """What a layer calls its attention."""
    positions: Literal["rope", "learned", "alibi"] = "rope"
    """The model's own encoding, by its name in `dape list`."""
    length: str = "max_position_embeddings"
    """The configuration's field for the longest text. If empty, the length must be given."""
    dropout: str = "attention_dropout"
    """The attention layer's attribute for the dropout of attention weights: a number or an ``nn.Dropout``."""
    forward: Callable[..., tuple[Tensor, None]] | None = None
    """Replaces the attention layer's ``forward``, where that does not call the library's interface."""


def bloom_forward(
    module: Any,
    hidden_states: Tensor,
    residual: Tensor,
    alibi: Tensor,
    attention_mask: Tensor,
    layer_past: Any = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """``alibi`` is not added here: it is the base of the adapter."""
    q, k, v = module._reshape(module.query_key_value(hidden_states))
    if layer_past is not None:
        k, v = layer_past.update(k, v, module.layer_idx)
    y, _weights = dape_attention(module, q, k, v, attention_mask, scaling=module.inv_norm_factor)
    out = nn.functional.dropout(module.dense(y.flatten(2)), p=module.hidden_dropout, training=module.training)
    return residual + out, None


def mpt_forward(
    module: Any,
    hidden_states: Tensor,
    position_bias: Tensor,
    past_key_values: Any = None,
    attention_mask: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """``position_bias`` is ALiBi and not added here: it is the base of the adapter."""
    mixed = module.Wqkv(hidden_states)
    if module.clip_qkv:
        mixed = mixed.clamp(min=-module.clip_qkv, max=module.clip_qkv)
    q, k, v = (x.unflatten(-1, (module.n_heads, -1)).transpose(1, 2) for x in mixed.chunk(3, dim=2))
    if past_key_values is not None:
        k, v = past_key_values.update(k, v, module.layer_idx)
    y, _weights = dape_attention(module, q, k, v, attention_mask, scaling=module.softmax_scale)
    return module.out_proj(y.flatten(2)), None


def falcon_forward(
    module: Any,
    hidden_states: Tensor,
    alibi: None,
    attention_mask: Tensor,
    position_ids: Tensor | None = None,
    layer_past: Any = None,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    from transformers.models.falcon.modeling_falcon import apply_rotary_pos_emb

    q, k, v = (x.transpose(1, 2) for x in module._split_heads(module.query_key_value(hidden_states)))
    assert position_embeddings is not None
    q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
    if layer_past is not None:
        k, v = layer_past.update(k, v, module.layer_idx)
    y, _weights = dape_attention(module, q, k, v, attention_mask, scaling=module.inv_norm_factor)
    return module.dense(y.flatten(2)), None


_LIKE_LLAMA = Family()
FAMILIES = {
    "bloom": Family(layers="h", attention="self_attention", positions="alibi", length="", forward=bloom_forward),
    "falcon": Family(layers="h", attention="self_attention", forward=falcon_forward),
    "gemma": _LIKE_LLAMA,
    "gemma2": _LIKE_LLAMA,
    "gemma3_text": _LIKE_LLAMA,
    "gpt2": Family(layers="h", attention="attn", positions="learned", dropout="attn_dropout"),
    "gpt_neox": Family(attention="attention"),
    "llama": _LIKE_LLAMA,
    "mistral": _LIKE_LLAMA,
    "mpt": Family(layers="blocks", attention="attn", positions="alibi", length="max_seq_len", dropout="attn_dropout_p",
                  forward=mpt_forward),
    "olmo2": _LIKE_LLAMA,
    "opt": Family(layers="decoder.layers", positions="learned", dropout="dropout"),
    "phi3": _LIKE_LLAMA,
    "qwen2": _LIKE_LLAMA,
    "qwen3": _LIKE_LLAMA,
    "smollm3": _LIKE_LLAMA,
    "starcoder2": _LIKE_LLAMA,
}  # fmt: skip
"""Families by the ``model_type`` of the configuration."""


def check_family(config: Any) -> None:
    """Refuse members of a family whose attention differs from it."""
    kind = config.model_type
    if kind == "falcon" and config.alibi:
        raise ValueError(
            "falcon with alibi=True divides its bias by the width of a head and rounds its slopes to bfloat16; only "
            "Falcon models with rotation can hold an adapter"
        )
    if kind == "bloom" and config.pretraining_tp > 1 and config.slow_but_exact:
        raise ValueError("bloom with slow_but_exact=True cannot hold an adapter; load it with slow_but_exact=False")
    if kind == "gemma3_text" and getattr(config, "use_bidirectional_attention", False):
        raise ValueError("gemma3_text with use_bidirectional_attention=True sees the future; adapters are causal")
    heads = config.num_attention_heads
    if kind == "mpt" and heads & (heads - 1):
        raise ValueError(
            f"mpt with {heads} heads orders its slopes in a way of its own; dape-alibi has them only where the number "
            "of heads is a power of two"
        )


def body_of(model: nn.Module) -> nn.Module:
    return model.base_model  # pyright: ignore[reportReturnType]


def layers_in(model: nn.Module, family: Family) -> list[nn.Module]:
    found: Any = body_of(model).get_submodule(family.layers)
    return [layer.get_submodule(family.attention) for layer in found]
