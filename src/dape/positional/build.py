"""``build`` makes an encoding from its name and options."""

import inspect
from typing import Any, Unpack, get_args, get_origin

from dape.errors import did_you_mean
from dape.positional.base import AttentionDims, PositionalEncoding, require_count
from dape.positional.catalogue import find
from dape.positional.dape import DEFAULT_HIDDEN, Dape, DapeV2, DapeWrapper
from dape.positional.log_scale import LogScaled
from dape.positional.names import BIAS_ONLY, DAPE, DAPE_V2, LOGN, SINK, parse
from dape.positional.randomized import Randomized
from dape.positional.sinks import Sinks

_MODIFIERS = {SINK: Sinks, LOGN: LogScaled}
_WRAPPERS: dict[str, type[DapeWrapper]] = {DAPE_V2: DapeV2, DAPE: Dape, BIAS_ONLY: Dape}


def build(
    name: str, *, num_heads: int, head_dim: int, train_length: int, model_dim: int | None = None, **options: Any
) -> PositionalEncoding:
    """Build a positional encoding by its catalogue name, for instance ``"dape-kerple"`` or ``"randomized-rope"``.

    Options go to the part that knows them: ``build("randomized-dape-fire", ..., pool=2048, hidden=64, threshold=64)``.
    Whether attention is causal is not a property of the encoding: pass ``causal`` to ``attention()`` or ``bias()``.

    Args:
        name: from ``dape list`` or :func:`dape.encodings`, perhaps with ``randomized-``, ``sink-``, ``logn-`` in front.
            ``bias-only-dape-X`` is dape-X with ``variant="bias_only"``.
        num_heads: query heads.
        head_dim: width of a head.
        train_length: longest sequence seen in training.
        model_dim: width of the token embeddings; by default ``num_heads * head_dim``.
        options: of the encoding.

    Returns:
        A module with parameters, one per layer of a model.

    Raises:
        ValueError: a name that is not known, or a value that is not possible.
        TypeError: an option that the encoding does not have.

    Examples:
        >>> alibi = build("alibi", num_heads=2, head_dim=4, train_length=8)
        >>> alibi.bias(torch.tensor([2]), torch.tensor([0, 1, 2]))[0]
        tensor([[-0.1250, -0.0625, -0.0000]])
    """
    if not isinstance(name, str):
        raise TypeError(f"an encoding is built by its name, a string such as 'dape-kerple'; got {name!r}")
    dims = _check_dims(num_heads, head_dim, train_length, model_dim)
    find(name)
    parsed = parse(name)
    base_class, wrapper = find(parsed.base).load(), _WRAPPERS.get(parsed.wrapper)
    around = [Randomized] * parsed.randomized + [_MODIFIERS[modifier] for modifier in parsed.modifiers]
    parts = [*around, *([] if wrapper is None else [wrapper]), base_class]
    if parsed.wrapper == BIAS_ONLY and options.setdefault("variant", "bias_only") != "bias_only":
        raise ValueError(f"{name!r} has variant='bias_only' already, and was given {options['variant']!r}")
    shares = _share_options(name, parts, options)

    if wrapper is None:
        pe = base_class(dims, **shares[base_class])
    else:
        hidden = require_count("hidden", shares[wrapper].get("hidden", DEFAULT_HIDDEN))
        inside = base_class.defaults_inside_dape(hidden)
        pe = wrapper(dims, base_class(dims, **{**inside, **shares[base_class]}), **shares[wrapper])
    for part in reversed(around):
        pe = part(pe, **shares[part])
    return pe


def options_of(encoding: type[PositionalEncoding]) -> dict[str, inspect.Parameter]:
    """The keyword options of an encoding's constructor: its own keyword arguments, and those of its parent that are
    listed in ``**options: Unpack[...]``."""
    parameters = inspect.signature(encoding.__init__).parameters.values()
    named = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "draw"}
    handed_on = [p.annotation for p in parameters if p.kind is p.VAR_KEYWORD and get_origin(p.annotation) is Unpack]
    if not handed_on:
        return named
    owner = next(place for place, parent in enumerate(encoding.__mro__) if "__init__" in vars(parent))
    inherited, names = options_of(encoding.__mro__[owner + 1]), get_args(handed_on[0])[0].__annotations__
    return {name: inherited[name] for name in names} | named


def _share_options(
    name: str, parts: list[type[PositionalEncoding]], options: dict[str, Any]
) -> dict[type[PositionalEncoding], dict[str, Any]]:
    """Assign every option to the outermost part that has it."""
    shares: dict[type[PositionalEncoding], dict[str, Any]] = {part: {} for part in parts}
    known = {option for part in parts for option in options_of(part)}
    for option, value in options.items():
        owner = next((part for part in parts if option in options_of(part)), None)
        if owner is None:
            raise TypeError(_unknown_option(name, option, known))
        shares[owner][option] = value
    return shares


def _unknown_option(name: str, option: str, known: set[str]) -> str:
    if option in ("causal", "bidirectional_attention"):
        return f"{option!r} is not an option of an encoding: pass causal=... to attention() or bias() at every call"
    listed = ", ".join(sorted(known)) or "none"
    return f"{name!r} has no option {option!r}.{did_you_mean(option, known)} Its options: {listed}"


def _check_dims(num_heads: int, head_dim: int, train_length: int, model_dim: int | None) -> AttentionDims:
    return AttentionDims(
        num_heads=require_count("num_heads", num_heads),
        head_dim=require_count("head_dim", head_dim),
        train_length=require_count("train_length", train_length),
        model_dim=num_heads * head_dim if model_dim is None else require_count("model_dim", model_dim),
    )
