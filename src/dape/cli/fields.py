"""Names of arguments as flags, and flags whose values cannot be read by their type alone. No torch here.

The library knows nothing of flags: its errors name arguments, in backticks, and :func:`with_flags` turns them into
flags; its settings are plain dataclasses, and what tyro must know of their fields is said here.
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
    """``train_length`` is typed as ``--train-length``."""
    return "--" + name.replace("_", "-")


def with_flags(message: str, commands: Iterable[type], *, positional: bool = True) -> str:
    """The message of an error, or help: what it has in backticks is written as a flag where it is an argument of a
    command, or (if ``positional``) in capitals where commands take it without one."""
    flags, bare = set(), set()
    for command in commands:
        for name, is_positional in _arguments(command):
            (bare if is_positional else flags).add(name)

    def typed(name: str) -> str:
        return flag_of(name) if name in flags else name.upper() if positional and name in bare else f"`{name}`"

    return re.sub("(?<!`)`([a-z][a-z0-9_]*)`(?!`)", lambda found: typed(found[1]), message)


def _arguments(kind: Any) -> Iterator[tuple[str, bool]]:
    """The fields of a command's settings and of the sections in them, and which of them are positional."""
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
