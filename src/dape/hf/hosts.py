"""Which models of the library an adapter fits, and where its parts go."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dape.hf.families import FAMILIES, check_family, layers_in

SUPPORTED = tuple(FAMILIES)


@dataclass(frozen=True)
class Host:
    """What an adapter must know of a model."""

    model_type: str
    layers: int
    heads: int
    head_dim: int
    width: int
    train_length: int | None
    """As its configuration says; the length of its training may be less. None if it does not say (Bloom)."""
    rotates: bool
    kv_heads: int | None = None
    """None if an older version of dape saved the adapter; so are the fields below."""
    vocabulary: int | None = None
    rope_parameters: dict[str, Any] | None = None
    """The model's own rotation as its configuration describes it; None if it has none."""


def check_type(kind: str) -> None:
    if kind not in SUPPORTED:
        raise ValueError(
            f"{kind}: adapters exist for {', '.join(SUPPORTED)}. In an architecture of your own, call dape.attention"
        )


def library_model(model: nn.Module) -> nn.Module:
    """The transformers library's own model, out of the wrapper that peft puts around it."""
    unwrap = getattr(model, "get_base_model", None)
    return model if unwrap is None else unwrap()


def describe(model: nn.Module) -> Host:
    config: Any = getattr(model, "config", None)
    kind = getattr(config, "model_type", type(model).__name__)
    check_type(kind)
    heads, width = config.num_attention_heads, config.hidden_size
    if width % heads and not getattr(config, "head_dim", None):
        raise ValueError(f"{kind}: width {width} cannot be divided into {heads} heads of equal width")
    return Host(
        model_type=kind,
        layers=config.num_hidden_layers,
        heads=heads,
        head_dim=getattr(config, "head_dim", None) or width // heads,
        width=width,
        train_length=own_length(config),
        rotates=own_encoding(model) == "rope",
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        vocabulary=config.vocab_size,
        rope_parameters=copy.deepcopy(getattr(config, "rope_parameters", None)),
    )


def own_encoding(model: nn.Module) -> str:
    """The model's own encoding, by its name in `dape list`."""
    config: Any = model.config
    check_type(config.model_type)
    return FAMILIES[config.model_type].positions


def own_length(config: Any) -> int | None:
    """The longest text of a configuration; None if it does not say."""
    family = FAMILIES.get(config.model_type)
    return getattr(config, family.length if family else "max_position_embeddings", None)


def check_attention(model: nn.Module) -> None:
    """Refuse what the operator cannot compute before anything is changed."""
    config: Any = model.config
    host, groups = describe(model), getattr(config, "num_key_value_heads", None)
    if groups and host.heads % groups:
        raise ValueError(f"{host.model_type}: {host.heads} query heads cannot share {groups} key heads equally")
    check_family(config)


def attention_layers(model: nn.Module) -> list[nn.Module]:
    """All attention layers, in order."""
    host = describe(model)
    found = layers_in(library_model(model), FAMILIES[host.model_type])
    if len(found) != host.layers:
        raise ValueError(
            f"{host.model_type}: found {len(found)} attention layers, the configuration says {host.layers}"
        )
    return found


def device_of(layer: nn.Module) -> torch.device:
    """The device on which a layer computes. If accelerate keeps its weights elsewhere (CPU, disk), the layer holds
    empty tensors and accelerate's hook knows the device."""
    for module in layer.modules():
        hook = getattr(module, "_hf_hook", None)
        for each in getattr(hook, "hooks", [hook]):
            if (found := getattr(each, "execution_device", None)) is not None:
                return torch.device(found)
    return next(layer.parameters()).device


def own_config(model: nn.Module) -> None:
    """Give the model a copy of its configuration, in all its parts: other models may share the object."""
    shared = model.config
    copied = copy.deepcopy(shared)
    for module in model.modules():
        for name in [name for name, value in vars(module).items() if value is shared]:
            setattr(module, name, copied)


def rotary_modules(model: nn.Module) -> Iterator[nn.Module]:
    """The modules that give (cos, sin) to all layers."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] == "rotary_emb":
            yield module


def drop_rotation(model: nn.Module) -> list[RemovableHandle]:
    """Leave queries and keys unrotated until the handles are removed."""
    return [module.register_forward_hook(_no_rotation) for module in rotary_modules(model)]


def _no_rotation(module: nn.Module, args: Any, output: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    cos, sin = output
    return torch.ones_like(cos), torch.zeros_like(sin)


Rotation = tuple[nn.Module, Tensor, float]
"""A module that makes (cos, sin), its frequencies, and the factor of its cos and sin."""


def scale_rotation(
    model: nn.Module, kind: Literal["linear", "yarn"], factor: float, train_length: int
) -> list[Rotation]:
    """Scale the rotation as the library does for a model loaded with it. Returns what was there before."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    check_unscaled(model)
    config: Any = copy.deepcopy(model.config)
    given = config.rope_parameters
    scaling = {"rope_type": kind, "factor": float(factor), "original_max_position_embeddings": train_length}
    config.rope_parameters = {**given, **scaling}
    before: list[Rotation] = []
    for module in rotary_modules(model):
        rotary: Any = module
        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, rotary.inv_freq.device)
        before.append((module, rotary.inv_freq, rotary.attention_scaling))
        rotary.inv_freq, rotary.attention_scaling = frequencies.to(rotary.inv_freq.dtype), scale
    return before


def has_plain_rotation(model: nn.Module) -> bool:
    return describe(model).rotates and _rope_type(model) == "default"


def _rope_type(model: nn.Module) -> str:
    config: Any = model.config
    given = config.rope_parameters
    if any(isinstance(each, dict) for each in given.values()):  # Gemma 3
        return "of its own for each kind of layer"
    return given.get("rope_type", "default")


def check_unscaled(model: nn.Module) -> None:
    kind = _rope_type(model)
    if kind != "default":
        raise ValueError(f"the rotation of this model is scaled already (rope_type {kind!r}); use rope='keep'")


def restore_rotation(before: list[Rotation]) -> None:
    for module, frequencies, scale in before:
        rotary: Any = module
        # The model may have moved since.
        rotary.inv_freq, rotary.attention_scaling = frequencies.to(rotary.inv_freq.device), scale


def set_dropout(layer: nn.Module, name: str, share: float) -> float:
    """Set the dropout of attention weights. Returns the share it was."""
    dropout: Any = getattr(layer, name, 0.0)
    where, name = (dropout, "p") if isinstance(dropout, nn.Dropout) else (layer, name)
    before = float(getattr(where, name, 0.0))
    if before != share:
        setattr(where, name, share)
    return before
