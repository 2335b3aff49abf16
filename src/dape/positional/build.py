"""``build``: from a name and options to a module."""

import difflib
import inspect
import math
from typing import Any

from dape.positional.base import AttentionDims, PositionalEncoding
from dape.positional.catalogue import DAPE, DAPE_V2, ENTRIES, RANDOMIZED, find
from dape.positional.dape import Dape, DapeV2, DapeWrapper
from dape.positional.randomized import Randomized

_COUNTS = {"hidden", "kernel", "max_distance", "max_positions", "mlp_width", "npos", "num_buckets", "pool", "width"}
_POSITIVE = {"base", "beta_fast", "beta_slow", "threshold"}
_WRAPPERS: dict[str, type[DapeWrapper]] = {DAPE_V2: DapeV2, DAPE: Dape}


def build(
    name: str,
    *,
    num_heads: int,
    head_dim: int,
    train_length: int,
    model_dim: int | None = None,
    **options: Any,
) -> PositionalEncoding:
    """Build a positional encoding by its catalogue name, for instance ``"dape-kerple"`` or ``"randomized-rope"``.

    Options go to the part that knows them: ``build("randomized-dape-fire", ..., pool=2048, hidden=64, threshold=64)``.
    Whether attention is causal is not a property of the encoding: pass ``causal`` to ``attention()`` or ``bias()``.
    """
    if not isinstance(name, str):
        raise TypeError(f"an encoding is built by its name, a string such as 'dape-kerple'; got {name!r}")
    dims = _check_dims(name, num_heads, head_dim, train_length, model_dim)
    inner = name.removeprefix(RANDOMIZED)
    entry = find(inner)
    prefix = next((p for p in _WRAPPERS if inner.startswith(p)), "")
    parts: list[type[PositionalEncoding]] = [] if inner == name else [Randomized]
    base_class = ENTRIES[inner.removeprefix(prefix)].load() if prefix else entry.load()
    parts += [_WRAPPERS[prefix]] if prefix else []
    shares = _share_options(name, [*parts, base_class], options)

    wrapper_options = shares.get(_WRAPPERS[prefix], {}) if prefix else {}
    inside = base_class.defaults_inside_dape(wrapper_options.get("hidden", 32)) if prefix else {}
    pe: PositionalEncoding = base_class(dims, **{**inside, **shares[base_class]})
    if prefix:
        pe = _WRAPPERS[prefix](dims, pe, **wrapper_options)
    return Randomized(pe, **shares[Randomized]) if inner != name else pe


def options_of(encoding: type[PositionalEncoding]) -> dict[str, inspect.Parameter]:
    """The keyword options of an encoding, read off its constructor."""
    parameters = inspect.signature(encoding.__init__).parameters
    return {n: p for n, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY and n != "draw"}


def _share_options(
    name: str, parts: list[type[PositionalEncoding]], options: dict[str, Any]
) -> dict[type[PositionalEncoding], dict[str, Any]]:
    """Give every option to the outermost part that knows it."""
    shares: dict[type[PositionalEncoding], dict[str, Any]] = {part: {} for part in parts}
    known = {option for part in parts for option in options_of(part)}
    for option, value in options.items():
        owner = next((part for part in parts if option in options_of(part)), None)
        if owner is None:
            raise TypeError(_unknown_option(name, option, known))
        shares[owner][option] = _check_choice(name, option, value, options_of(owner)[option])
    return shares


def _unknown_option(name: str, option: str, known: set[str]) -> str:
    if option in ("causal", "bidirectional_attention"):
        return f"{option!r} is not an option of an encoding: pass causal=... to attention() or bias() at every call"
    near = difflib.get_close_matches(option, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(sorted(known)) or "none"
    return f"{name!r} has no option {option!r}.{hint} Its options: {listed}"


def _check_choice(name: str, option: str, value: Any, parameter: inspect.Parameter) -> Any:
    choices = getattr(parameter.annotation, "__args__", ())
    if choices and all(isinstance(c, str) for c in choices) and value not in choices:
        raise ValueError(f"{name!r}: {option}={value!r} is not possible; choose one of {', '.join(map(repr, choices))}")
    if option in _COUNTS and value is not None:
        check_count(name, option, value)
    if option in _POSITIVE and value is not None and not (_is_number(value) and 0 < value < math.inf):
        raise ValueError(f"{name!r}: {option} must be a positive number, got {value!r}")
    return value


def check_count(name: str, what: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name!r}: {what} must be a positive whole number, got {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_dims(name: str, num_heads: int, head_dim: int, train_length: int, model_dim: int | None) -> AttentionDims:
    given = {"num_heads": num_heads, "head_dim": head_dim, "train_length": train_length}
    if model_dim is not None:
        given["model_dim"] = model_dim
    for what, value in given.items():
        check_count(name, what, value)
    return AttentionDims(
        num_heads=num_heads,
        head_dim=head_dim,
        train_length=train_length,
        model_dim=num_heads * head_dim if model_dim is None else model_dim,
    )
