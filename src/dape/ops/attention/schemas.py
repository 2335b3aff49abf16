"""Schemas of operators from a named tuple of their arguments, so that forward and backward do not repeat them."""

from collections.abc import Sequence
from typing import Any, get_type_hints

from torch import Tensor

NAMES = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    Sequence[Tensor]: "Tensor[]",
    int: "SymInt",
    bool: "bool",
    str: "str",
}


def schema(given: type, results: str, before: str = "", after: str = "") -> str:
    """The schema of an operator whose arguments are these fields; ``before`` and ``after`` are others, as text."""
    fields: dict[str, Any] = get_type_hints(given)
    arguments = [f"{NAMES[kind]} {name}" for name, kind in fields.items()]
    return f"({', '.join([*filter(None, [before]), *arguments, *filter(None, [after])])}) -> {results}"
