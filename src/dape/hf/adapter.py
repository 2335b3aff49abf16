"""Adapters: an encoding in every attention layer of a model that exists, and nothing else trained.

    A + f([A; B])     dape-X, zero_init: the model as it was, until f learns
    A + g B           X alone, zero_init: the same with one number per head in front of the bias
    rerope, self-extend    in place of the model's rotation; there is nothing to train

A are the scores of the model, rotated if it rotates. With ``zero_init=False`` the encoding starts as in a new model.
"""

import math
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from types import MethodType
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from dape.hf.attention import NAME, NO_WEIGHTS, PACKED, PLACE, encoding_at, register, starts_anew
from dape.hf.families import FAMILIES
from dape.hf.hosts import (
    Host,
    Rotation,
    attention_layers,
    check_attention,
    check_unscaled,
    describe,
    device_of,
    drop_rotation,
    library_model,
    own_config,
    restore_rotation,
    scale_rotation,
    set_dropout,
)
from dape.hf.methods import check_for_host, check_method, in_place_of_rotation, new_encoding, stands_in
from dape.positional.base import PositionalEncoding

Rope = Literal["keep", "remove", "yarn"]
HANDLE, WARNED = "_dape_adapter", "_dape_warned"


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
    are left to train; where peft trains tensors of its own, say ``freeze=False``. ``rope="yarn", factor=32`` puts YaRN
    under the adapter, for up to 32 training lengths. ``train_length`` is the length the model was trained at, by
    default its configuration's. Other options are those of `dape list`, for instance ``hidden=16``. Dropout of
    attention weights is switched off. What is refused leaves the model as it was.

    Nothing is trained here: ``dape.extend(folder, data=...)`` opens a model's folder, trains an adapter on a text and
    measures it, as the command `dape extend` does.
    """
    adapter = plan(
        model, method, zero_init=zero_init, rope=rope, factor=factor, train_length=train_length, options=options
    )
    if freeze:
        _check_no_peft_in_training(model)
    layers = attention_layers(model)
    encodings = [new_encoding(adapter).to(device_of(layer)) for layer in layers]
    own_config(model)
    library = library_model(model)
    inside = _Inside(adapter)
    inside.switch_on(library)
    inside.frozen = _freeze(library) if freeze else set()
    for layer, pe in zip(layers, encodings, strict=True):
        layer.add_module(PLACE, pe)
    object.__setattr__(library, HANDLE, inside)
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
    """The adapter that :func:`extend` would put in. Everything that cannot work is refused here."""
    host = describe(model)
    if hasattr(model, HANDLE):
        raise ValueError("the model has an adapter already; dape.hf.remove(model) takes it out")
    check_method(method)
    if stands_in(method):
        options, rope = in_place_of_rotation(method, host, model.config, rope, options), "remove"
    check_rope(model, host, rope, factor)
    check_for_host(method, host)
    check_attention(model)
    length = host.train_length if train_length is None else train_length
    if length is None:
        raise ValueError(f"the configuration of this {host.model_type} does not say its length: pass train_length=2048")
    adapter = Adapter(
        method=method, options=options, zero_init=zero_init, rope=rope, factor=factor, train_length=length, host=host
    )
    with torch.device("meta"):
        new_encoding(adapter)
    return adapter


def check_rope(model: nn.Module, host: Host, rope: str, factor: float) -> None:
    if rope not in get_args(Rope):
        raise ValueError(f"rope={rope!r} is not possible; choose one of {', '.join(map(repr, get_args(Rope)))}")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not math.isfinite(factor):
        raise TypeError(f"factor is a number, how many training lengths YaRN is for, such as 32.0; got {factor!r}")
    if rope != "keep" and not host.rotates:
        raise ValueError(f"{host.model_type} has no rotation to {'remove' if rope == 'remove' else 'slow down'}")
    if (rope == "yarn") != (factor > 1):
        raise ValueError(f"rope='yarn' goes with a factor above 1, and nothing else does; got {rope!r} and {factor:g}")
    if rope == "yarn":
        check_unscaled(model)


@dataclass
class _Inside:
    """An adapter in its model, and what :func:`remove` puts back."""

    adapter: Adapter
    frozen: set[str] = field(default_factory=set)
    """Names of the parameters that were frozen."""
    before: "_Before | None" = None
    """None while the adapter is switched off."""

    def switch_on(self, model: nn.Module) -> None:
        """Let attention use the adapter. If that is refused, the model stays as it was."""
        if self.before is not None:
            return
        adapter, layers = self.adapter, attention_layers(model)
        family = FAMILIES[adapter.host.model_type]
        before = _Before(_switch(model, NAME))
        if adapter.rope == "yarn":
            before.rotations = scale_rotation(model, "yarn", adapter.factor, adapter.train_length)
        before.dropout = [set_dropout(layer, family.dropout, 0.0) for layer in layers]
        before.handles = _hooks(model, adapter.rope)
        before.forwards = [vars(layer).get("forward") for layer in layers]
        if family.forward is not None:
            for layer in layers:
                layer.forward = MethodType(family.forward, layer)
        self.before = before

    def switch_off(self, model: nn.Module) -> None:
        """Restore the model's own attention; the adapter's tensors stay in their places."""
        before, layers = self.before, attention_layers(model)
        if before is None:
            return
        family = FAMILIES[self.adapter.host.model_type]
        for layer, dropout, forward in zip(layers, before.dropout, before.forwards, strict=True):
            set_dropout(layer, family.dropout, dropout)
            if family.forward:
                del layer.forward
            if family.forward and forward:
                layer.forward = forward
        for handle in before.handles:
            handle.remove()
        restore_rotation(before.rotations)
        _switch(model, before.implementation)
        self.before = None


@dataclass
class _Before:
    """What :meth:`_Inside.switch_on` changed."""

    implementation: str
    handles: list[RemovableHandle] = field(default_factory=list)
    dropout: list[float] = field(default_factory=list)
    rotations: list[Rotation] = field(default_factory=list)
    forwards: list[Any] = field(default_factory=list)
    """The ``forward`` of each attention layer that had one of its own, as accelerate sets it; else None."""


def _freeze(model: nn.Module) -> set[str]:
    """Freeze every parameter. Returns the names of those that were not frozen before."""
    found = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    for _, parameter in found:
        parameter.requires_grad_(False)
    return {name for name, _ in found}


def _holds_peft(model: nn.Module) -> bool:
    return any(type(module).__module__.partition(".")[0] == "peft" for module in model.modules())


def _check_no_peft_in_training(model: nn.Module) -> None:
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    if trained and _holds_peft(model):
        raise ValueError(
            f"peft trains {len(trained)} tensors of this model ({trained[0]}, ...), and freeze=True would stop that. "
            "With freeze=False they and the adapter learn together (peft has frozen the rest); if they have learned "
            "enough, merge them into the model first: model.merge_and_unload()"
        )


def _hooks(model: nn.Module, rope: Rope) -> list[RemovableHandle]:
    body: nn.Module = model.base_model  # pyright: ignore[reportAssignmentType]
    handles = [body.register_forward_pre_hook(_check_call, with_kwargs=True)]
    return handles + drop_rotation(model) if rope == "remove" else handles


def _check_call(body: nn.Module, args: Any, given: dict[str, Any]) -> None:
    """Check a call of the model. Done here because not every architecture passes ``output_attentions`` to its layers,
    and with a cache none looks for packed texts."""
    config: Any = body.config
    _warn_if_left_out(body)
    if given.get("output_attentions", getattr(config, "output_attentions", False)):
        raise ValueError(NO_WEIGHTS)
    positions, mask = given.get("position_ids"), given.get("attention_mask")
    if positions is None or positions.shape[-1] < 2 or torch.compiler.is_compiling():
        return
    asked = given.get("use_cache")
    caches = given.get("past_key_values") is not None or (config.use_cache if asked is None else asked)
    if (caches or mask is not None) and starts_anew(positions, mask):
        raise ValueError(PACKED)


def _warn_if_left_out(body: nn.Module) -> None:
    """Warn once if another library has frozen the adapter; they freeze what they do not know without saying so."""
    if torch.compiler.is_compiling() or not (body.training and torch.is_grad_enabled()) or hasattr(body, WARNED):
        return
    own = {p for pe in body.modules() if isinstance(pe, PositionalEncoding) for p in pe.parameters()}
    if not own or any(p.requires_grad for p in own) or not any(p.requires_grad for p in body.parameters()):
        return
    object.__setattr__(body, WARNED, True)
    warnings.warn(
        "the dape adapter is frozen and stays as it is, while other tensors of the model are trained (peft freezes all "
        "but its own). To train and save it with LoRA: LoraConfig(..., modules_to_save=['dape']). Or, before the "
        "optimizer is made: for p in dape.hf.adapter_parameters(model): p.requires_grad_(True)",
        stacklevel=2,
    )


def _switch(model: nn.Module, implementation: str) -> str:
    """Set the implementation of attention. Returns the one that was set before."""
    register()
    config: Any = model.config
    before = config._attn_implementation
    if FAMILIES[config.model_type].forward:  # the name chooses the mask alone
        config._attn_implementation = implementation
    else:
        model.set_attn_implementation(implementation)  # pyright: ignore[reportCallIssue]
    if config._attn_implementation != implementation:
        raise ValueError(
            f"{config.model_type} does not let its attention be replaced (it stays with "
            f"{config._attn_implementation!r}); load it with attn_implementation='eager' or 'sdpa'"
        )
    return before


def adapter_of(model: nn.Module) -> Adapter:
    return inside_of(model).adapter


def inside_of(model: nn.Module) -> _Inside:
    found = getattr(model, HANDLE, None)
    if found is None:
        raise ValueError("the model has no adapter; dape.hf.extend(model, ...) puts one in")
    return found


def encodings_of(model: nn.Module) -> list[PositionalEncoding]:
    """The adapter's own modules, by layer."""
    adapter_of(model)
    return [encoding_at(layer) for layer in attention_layers(model)]


def adapter_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    for pe in encodings_of(model):
        yield from pe.parameters()


def project_(model: nn.Module) -> None:
    """Put constrained parameters back into range; call after every optimizer step."""
    for pe in encodings_of(model):
        pe.project_()


def remove(model: nn.Module) -> nn.Module:
    """Take the adapter out: the model is as it was before :func:`extend`. Parameters that ``extend`` froze can be
    trained again, unless peft is in the model and decides what is trained."""
    inside, library = inside_of(model), library_model(model)
    inside.switch_off(library)
    for layer in attention_layers(model):
        delattr(layer, PLACE)
    for name, parameter in [] if _holds_peft(library) else library.named_parameters():
        if name in inside.frozen:
            parameter.requires_grad_(True)
    object.__delattr__(library, HANDLE)
    return model
