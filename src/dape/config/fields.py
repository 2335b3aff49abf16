"""Flags whose values the command line cannot read by their type alone. No torch here."""

import math
from typing import Any

import tyro
import yaml


def _read(words: list[str]) -> dict[str, Any]:
    options = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ValueError(f"{word!r} is not NAME=VALUE")
        try:
            options[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"{word!r}: cannot read the value ({error})") from error
    return options


def write_key_values(options: dict[str, Any]) -> list[str]:
    """The words that ``_read`` turns into ``options``."""
    return [f"{name}={_one_line(value)}" for name, value in options.items()]


def _one_line(value: Any) -> str:
    # A scalar is followed by a line "...", the end of a YAML document.
    return yaml.safe_dump(value, default_flow_style=True, width=math.inf).removesuffix("...\n").strip()


KEY_VALUES = tyro.constructors.PrimitiveConstructorSpec(
    nargs="*",
    metavar="[NAME=VALUE ...]",
    instance_from_str=_read,
    is_instance=lambda value: isinstance(value, dict),
    str_from_instance=write_key_values,
)
"""A dictionary of options as NAME=VALUE words, values written as in YAML."""
