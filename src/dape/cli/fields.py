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
    """Replace names in backticks in a message or a help text by what is typed for them.

    The first of ``commands`` that has an argument of that name decides: ``--data``, or ``CHECKPOINT`` for a positional
    argument, which is left alone if ``positional`` is false. Other names stay as they are.
    """
    words: dict[str, str] = {}
    for command in commands:
        for name, word in _arguments(command):
            if positional or word.startswith("-"):
                words.setdefault(name, word)
    return re.sub("(?<!`)`([a-z][a-z0-9_]*)`(?!`)", lambda found: words.get(found[1], found[0]), message)


def _arguments(kind: Any) -> Iterator[tuple[str, str]]:
    """The fields of a command and of its sections, and what is typed for each."""
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        hint = hints[each.name]
        marks = getattr(hint, "__metadata__", ())
        section = hint.__origin__ if marks else hint
        if is_dataclass(section):
            yield from _arguments(section)
        elif tyro.conf.Positional in marks:
            yield each.name, (attribute(marks, "metavar") or each.name.upper()).split()[0].strip("[].")
        else:
            yield each.name, flag_of(attribute(marks, "name") or each.name)


def attribute(marks: Iterable[Any], name: str) -> Any:
    """The attribute of the first mark that has it, as ``tyro.conf.arg`` sets ``name`` and ``metavar``."""
    return next((found for mark in marks if (found := getattr(mark, name, None))), None)


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
