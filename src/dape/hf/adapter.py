"""Adapters: an encoding in every attention layer of a model that exists, and nothing else trained.

    A + f([A; B])     dape-X, zero_init: the model as it was, until f learns
    A + g B           X alone, zero_init: the same with one number per head in front of the bias

A are the scores of the model, rotated if it rotates. With ``zero_init=False`` the encoding starts as in a new model.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from dape.hf.attention import NAME, PLACE, register
from dape.hf.hosts import (
    Host,
    Rotation,
    attention_layers,
    check_attention,
    check_unscaled,
    describe,
    restore_rotation,
    rotary_modules,
    scale_rotation,
    set_dropout,
)
from dape.positional.base import AdditiveBias, PositionalEncoding
from dape.positional.build import build
from dape.positional.catalogue import DAPE, DAPE_V2, RANDOMIZED, find
from dape.positional.gated import Gated

Rope = Literal["keep", "remove", "yarn"]
HANDLE = "_dape_adapter"


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """What was put into a model."""

    method: str
    options: dict[str, Any] = field(default_factory=dict)
    zero_init: bool = True
    rope: Rope = "keep"
    """keep: the scores that the encoding sees are rotated; remove: the model's own rotation is switched off; yarn: it
    is slowed down, so that up to ``factor`` training lengths it turns no further than it did."""
    factor: float = 1.0
    train_length: int
    host: Host

    def as_plain(self) -> dict[str, Any]:
        return asdict(self)


def extend(
    model: nn.Module,
    method: str = "dape-kerple",
    *,
    zero_init: bool = True,
    rope: Rope = "keep",
    factor: float = 1.0,
    train_length: int | None = None,
    freeze: bool = True,
    **options: Any,
) -> nn.Module:
    """Put an encoding into every attention layer of ``model``, in place, and return the model.

    With ``zero_init`` the model computes what it did before, up to rounding; with ``freeze`` only the adapter's tensors
    are left to train. ``rope="yarn", factor=32`` puts YaRN under the adapter, for up to 32 training lengths.
    ``train_length`` is the length the model was trained at, by default its configuration's. Other options are those of
    `dape list`, for instance ``hidden=16``. Dropout of attention weights is switched off. What is refused leaves the
    model as it was.
    """
    adapter = plan(
        model, method, zero_init=zero_init, rope=rope, factor=factor, train_length=train_length, options=options
    )
    layers = attention_layers(model)
    encodings = [new_encoding(adapter).to(next(layer.parameters()).device) for layer in layers]
    before = _switch(model, NAME)
    handles = [m.register_forward_hook(_no_rotation) for m in rotary_modules(model)] if rope == "remove" else []
    for parameter in model.parameters() if freeze else ():
        parameter.requires_grad_(False)
    for layer, pe in zip(layers, encodings, strict=True):
        layer.add_module(PLACE, pe)
    rotations = scale_rotation(model, "yarn", factor, adapter.train_length) if rope == "yarn" else []
    inside = _Inside(adapter, before, handles, [set_dropout(layer, 0.0) for layer in layers], rotations)
    object.__setattr__(model, HANDLE, inside)
    return model


def plan(
    model: nn.Module,
    method: str,
    *,
    zero_init: bool = True,
    rope: Rope = "keep",
    factor: float = 1.0,
    train_length: int | None = None,
    options: dict[str, Any],
) -> Adapter:
    """What :func:`extend` would put in; all that it refuses is refused here."""
    host = describe(model)
    if hasattr(model, HANDLE):
        raise ValueError("the model has an adapter already; dape.hf.remove(model) takes it out")
    check_rope(model, host, rope, factor)
    check_method(method)
    check_attention(model)
    length = host.train_length if train_length is None else train_length
    adapter = Adapter(
        method=method, options=options, zero_init=zero_init, rope=rope, factor=factor, train_length=length, host=host
    )
    with torch.device("meta"):
        new_encoding(adapter)
    return adapter


def check_rope(model: nn.Module, host: Host, rope: str, factor: float) -> None:
    if rope not in get_args(Rope):
        raise ValueError(f"rope={rope!r} is not possible; choose one of {', '.join(map(repr, get_args(Rope)))}")
    if rope != "keep" and not host.rotates:
        raise ValueError(f"{host.model_type} has no rotation to {'remove' if rope == 'remove' else 'slow down'}")
    if (rope == "yarn") != (factor > 1):
        raise ValueError(f"rope='yarn' goes with a factor above 1, and nothing else does; got {rope!r} and {factor:g}")
    if rope == "yarn":
        check_unscaled(model)


def check_method(method: str) -> None:
    entry = find(method.removeprefix(RANDOMIZED))
    if method.startswith(RANDOMIZED) or (entry.hook in ("embed", "logits", "rotate") and not method.startswith(DAPE)):
        raise ValueError(
            f"{method}: an adapter is an additive bias or DAPE (alibi, kerple, fire, t5, dape-kerple, ...)"
        )


def new_encoding(adapter: Adapter) -> PositionalEncoding:
    host, options = adapter.host, dict(adapter.options)
    is_dape = adapter.method.startswith(DAPE) and not adapter.method.startswith(DAPE_V2)
    if adapter.zero_init and adapter.method.startswith(DAPE_V2):
        raise ValueError("dape-v2 cannot start as the model it is put into; use zero_init=False, or dape-X")
    has_bias = find(adapter.method.removeprefix(DAPE)).hook == "bias" if is_dape else False
    if adapter.zero_init and is_dape:
        # B itself would change the model; f sees it, and is 0 at first.
        options = {"zero_init_out": True, **({"variant": "concat"} if has_bias else {}), **options}
        if options.get("variant", "concat") not in ("concat", "bias_map"):
            raise ValueError(
                f"variant={options['variant']!r} adds B from the start; with zero_init choose concat or bias_map"
            )
    pe = build(
        adapter.method,
        num_heads=host.heads,
        head_dim=host.head_dim,
        model_dim=host.width,
        train_length=adapter.train_length,
        **options,
    )
    if adapter.zero_init and isinstance(pe, AdditiveBias):
        return Gated(pe.dims, pe)
    return pe


@dataclass
class _Inside:
    """An adapter in its model, and what :func:`remove` puts back."""

    adapter: Adapter
    implementation: str
    handles: list[RemovableHandle]
    dropout: list[float]
    rotations: list[Rotation]


def _switch(model: nn.Module, implementation: str) -> str:
    """The implementation of attention that was there before."""
    register()
    config: Any = model.config
    before = config._attn_implementation
    model.set_attn_implementation(implementation)  # pyright: ignore[reportCallIssue]
    if config._attn_implementation != implementation:
        raise ValueError(
            f"{config.model_type} does not let its attention be replaced (it stays with "
            f"{config._attn_implementation!r}); load it with attn_implementation='eager' or 'sdpa'"
        )
    return before


def _no_rotation(module: nn.Module, args: Any, output: tuple[torch.Tensor, torch.Tensor]) -> tuple[Any, Any]:
    cos, sin = output
    return torch.ones_like(cos), torch.zeros_like(sin)


def adapter_of(model: nn.Module) -> Adapter:
    return _inside(model).adapter


def _inside(model: nn.Module) -> _Inside:
    found = getattr(model, HANDLE, None)
    if found is None:
        raise ValueError("the model has no adapter; dape.hf.extend(model, ...) puts one in")
    return found


def encodings_of(model: nn.Module) -> list[PositionalEncoding]:
    """The adapter's own modules, by layer."""
    adapter_of(model)
    found = [getattr(layer, PLACE) for layer in attention_layers(model)]
    return [pe for pe in found if isinstance(pe, PositionalEncoding)]


def adapter_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    for pe in encodings_of(model):
        yield from pe.parameters()


def project_(model: nn.Module) -> None:
    """Put constrained parameters back into range; call after every optimizer step."""
    for pe in encodings_of(model):
        pe.project_()


def remove(model: nn.Module) -> nn.Module:
    """The model as it was before :func:`extend`; its weights stay frozen or not as they are."""
    inside = _inside(model)
    for layer, dropout in zip(attention_layers(model), inside.dropout, strict=True):
        delattr(layer, PLACE)
        set_dropout(layer, dropout)
    for handle in inside.handles:
        handle.remove()
    restore_rotation(inside.rotations)
    _switch(model, inside.implementation)
    object.__delattr__(model, HANDLE)
    return model
