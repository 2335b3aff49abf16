"""Flags for the arguments and settings of the library. No torch here.

The library knows nothing of flags. Its errors name arguments in backticks, which :func:`with_flags` turns into flags.
Its settings are plain dataclasses; what tyro must know about their fields stands here.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import tyro

from dape.models.config import DecoderConfig
from dape.reading import parse_json, parse_yaml, reading, short


def flag_of(name: str) -> str:
    """``train_length`` becomes ``--train-length``."""
    return "--" + name.replace("_", "-")


def with_flags(message: str, commands: Iterable[type], *, positional: bool = True) -> str:
    """Replace names in backticks in a message or a help text: arguments of ``commands`` become flags.

    Positional arguments become capitals, unless ``positional`` is false. Other names stay as they are.
    """
    flags, positionals = set(), set()
    for command in commands:
        for name, is_positional in _arguments(command):
            (positionals if is_positional else flags).add(name)

    def typed(name: str) -> str:
        return flag_of(name) if name in flags else name.upper() if positional and name in positionals else f"`{name}`"

    return re.sub("(?<!`)`([a-z][a-z0-9_]*)`(?!`)", lambda found: typed(found[1]), message)


def _arguments(kind: Any) -> Iterator[tuple[str, bool]]:
    """The fields of a command and of its sections, and whether each is positional."""
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        hint = hints[each.name]
        marks = getattr(hint, "__metadata__", ())
        section = hint.__origin__ if marks else hint
        if is_dataclass(section):
            yield from _arguments(section)
        else:
            yield each.name, tyro.conf.Positional in marks


def _read(words: list[str]) -> dict[str, Any]:
    options = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ValueError(f"{word!r} is not NAME=VALUE")
        options[name] = _read_value(value, word)
    return options


def _read_value(value: str, word: str) -> Any:
    """Try JSON first, which reads 1e-5 as a number; then YAML, in which text needs no quotes."""
    try:
        return parse_json(value)
    except ValueError:
        with reading(short(word), "cannot read the value"):
            return parse_yaml(value)


def write_key_values(options: dict[str, Any]) -> list[str]:
    """The inverse of ``_read``."""
    return [f"{name}={json.dumps(value)}" for name, value in options.items()]


KEY_VALUES = tyro.constructors.PrimitiveConstructorSpec(
    nargs="*",
    metavar="[NAME=VALUE ...]",
    instance_from_str=_read,
    is_instance=lambda value: isinstance(value, dict),
    str_from_instance=write_key_values,
)
"""A dictionary of options as NAME=VALUE words."""

# The vocabulary gets no flag: the tokenizer of the data determines it.
DecoderConfig.__annotations__.update(
    vocabulary=Annotated[int, tyro.conf.Fixed, tyro.conf.Suppress],
    encoding_options=Annotated[dict[str, Any], KEY_VALUES],
)
