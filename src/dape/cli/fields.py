"""Names of arguments as flags, and flags whose values cannot be read by their type alone. No torch here.

The library knows nothing of flags: its errors name arguments, in backticks, and :func:`with_flags` turns them into
flags; its settings are plain dataclasses, and what tyro must know of their fields is said here.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import tyro

from dape.models.config import DecoderConfig
from dape.reading import parse_json, parse_yaml, reading, short


def flag_of(name: str) -> str:
    """``train_length`` is typed as ``--train-length``."""
    return "--" + name.replace("_", "-")


def with_flags(message: str, commands: Iterable[type]) -> str:
    """The message of an error; what it has in backticks is written as a flag where it is an argument of a command."""
    names = set().union(*map(_arguments, commands))
    return re.sub("`([a-z][a-z0-9_]*)`", lambda found: flag_of(found[1]) if found[1] in names else found[0], message)


def _arguments(kind: Any) -> set[str]:
    """The fields of a command's settings and of the sections in them."""
    hints = get_type_hints(kind)
    names = {each.name for each in fields(kind)}
    return names.union(*(_arguments(hint) for hint in hints.values() if is_dataclass(hint)))


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

# No flag for the vocabulary: the tokenizer of the data decides.
DecoderConfig.__annotations__.update(
    vocabulary=Annotated[int, tyro.conf.Fixed, tyro.conf.Suppress],
    encoding_options=Annotated[dict[str, Any], KEY_VALUES],
)
