"""Schemas of operators from a named tuple of their arguments, so that forward and backward need not repeat them."""

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
    """Of an operator with these fields as arguments, and others as a schema writes them ``before`` and ``after``."""
    fields: dict[str, Any] = get_type_hints(given)
    arguments = [f"{NAMES[kind]} {name}" for name, kind in fields.items()]
    return f"({', '.join([*filter(None, [before]), *arguments, *filter(None, [after])])}) -> {results}"
