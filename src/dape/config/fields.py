"""Flags whose values the command line cannot read by their type alone. No torch here."""

import json
from typing import Any

import tyro

from dape.reading import parse_json, parse_yaml, reading, short


def _read(words: list[str]) -> dict[str, Any]:
    options = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ValueError(f"{word!r} is not NAME=VALUE")
        options[name] = _read_value(value, word)
    return options


def _read_value(value: str, word: str) -> Any:
    """JSON, which knows 1e-5, or else YAML, which needs no quotes."""
    try:
        return parse_json(value)
    except ValueError:
        with reading(short(word), "cannot read the value"):
            return parse_yaml(value)


def write_key_values(options: dict[str, Any]) -> list[str]:
    """The words that ``_read`` turns into ``options``."""
    return [f"{name}={json.dumps(value)}" for name, value in options.items()]


KEY_VALUES = tyro.constructors.PrimitiveConstructorSpec(
    nargs="*",
    metavar="[NAME=VALUE ...]",
    instance_from_str=_read,
    is_instance=lambda value: isinstance(value, dict),
    str_from_instance=write_key_values,
)
"""A dictionary of options as NAME=VALUE words."""
