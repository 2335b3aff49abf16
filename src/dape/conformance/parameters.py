"""Set the parameters of a case in a module or function under test, and read their gradients.

Parameters are matched by name, as in the state dict of the reference, or by a mapping ``{theirs: ours}``; ``ours.T``
transposes, ``-`` leaves a parameter unchanged. The shape may differ if the number of entries is equal, as for
``[h, 1, 1]`` and ``[h]``."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from dape.errors import UsageError

Names = Mapping[str, str]
LEFT_ALONE = "-"
Gradients = dict[str, Callable[[], Tensor | None]]


def load_into(instance: Any, values: Mapping[str, Tensor], names: Names) -> Gradients:
    """Set the parameters of a module. Returns a function for each of our parameters, which returns its gradient."""
    own = dict(instance.named_parameters()) if isinstance(instance, nn.Module) else {}
    own = {n: p for n, p in own.items() if names.get(n) != LEFT_ALONE}
    names = {n: ours for n, ours in names.items() if ours != LEFT_ALONE}
    taken = _paired(list(own), values, names, {n: tuple(p.shape) for n, p in own.items()})
    for name, parameter in own.items():
        _fill(parameter, name, values, taken[name])
    return {_plain(taken[n]): functools.partial(_gradient, p, values, taken[n]) for n, p in own.items()}


def given_as_arguments(
    function: Callable[..., Any], signature: inspect.Signature, values: Mapping[str, Tensor], names: Names
) -> tuple[Callable[..., Any], Gradients]:
    """A function with its parameters bound by keyword, and functions that return their gradients."""
    arguments = [n for n in signature.parameters if n in values or n in names]
    taken = _paired(arguments, values, names, {})
    leaves = {n: _turned(values[_plain(taken[n])], taken[n]).clone().requires_grad_() for n in arguments}
    gradients = {_plain(taken[n]): functools.partial(_gradient, leaf, values, taken[n]) for n, leaf in leaves.items()}
    return functools.partial(function, **leaves) if leaves else function, gradients


def _paired(
    own: list[str], values: Mapping[str, Tensor], names: Names, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, str]:
    """Our name for each of their parameters. An error shows both lists if a name is left on either side."""
    if unknown := [n for n in names if n not in own]:
        raise UsageError(f"`names`: it has no parameter {unknown[0]!r}; it has {_listed(shapes) or own or 'none'}")
    if unknown := [n for n in names.values() if _plain(n) not in values]:
        raise UsageError(f"`names`: the vectors have no parameter {unknown[0]!r}; they have {_listed(values)}")
    taken = {n: names.get(n, n) for n in own}
    left = sorted(set(values) - {_plain(n) for n in taken.values()})
    extra = sorted(n for n, ours in taken.items() if _plain(ours) not in values)
    if left or extra:
        raise UsageError(
            f"parameters do not match by name. The vectors have {_listed(values) or 'none'}; the implementation has "
            f"{_listed(shapes) or ', '.join(own) or 'none'}. Say by `names` which is which, THEIRS=OURS "
            "(or THEIRS=- for one that stays as it is)" + (f", as in {extra[0]}={left[0]}" if left and extra else "")
        )
    return taken


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{n} {list(getattr(v, 'shape', v))}" for n, v in values.items())


def _plain(name: str) -> str:
    return name.removesuffix(".T")


def _turned(value: Tensor, name: str) -> Tensor:
    return value.mT if name.endswith(".T") else value


def _fill(parameter: nn.Parameter, name: str, values: Mapping[str, Tensor], ours: str) -> None:
    value = _turned(values[_plain(ours)], ours)
    if value.numel() != parameter.numel():
        raise UsageError(
            f"the parameter {name} has shape {list(parameter.shape)}, and {ours} of the vectors has {list(value.shape)}"
        )
    parameter.data.copy_(value.reshape(parameter.shape))


def _gradient(parameter: Tensor, values: Mapping[str, Tensor], ours: str) -> Tensor | None:
    if parameter.grad is None:
        return None
    shape = _turned(values[_plain(ours)], ours).shape
    return _turned(parameter.grad.reshape(shape), ours)
