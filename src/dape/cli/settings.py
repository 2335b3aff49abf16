"""Presets and YAML files as flags, put before the typed flags so that the typed ones win.

A file has the sections ``model`` and ``train`` and, at the top level, any other flag of the command. No torch here.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from dape.cli.fields import flag_of, write_key_values
from dape.config.load import read_preset, read_yaml
from dape.errors import UsageError
from dape.reading import short


def with_settings(argv: Sequence[str], command: type) -> list[str]:
    """``argv`` after the flags of the preset and of the ``--config`` file.

    The preset is the one that was typed, else the one named in the file, else the command's default.
    """
    path = value_of("--config", argv)
    settings = {} if path is None else _read_config(path)
    for name in ("config", "resume", "out"):
        if name in settings:
            raise UsageError(f"{path}: {name} belongs on the command line, not in a file")
    named = settings.pop("preset", None)
    preset = value_of("--preset", argv) or named or vars(command)["preset"]
    before = as_flags(read_preset(str(preset)), command, f"preset {preset}")
    return ["--preset", str(preset), *before, *as_flags(settings, command, str(path)), *argv]


def _read_config(path: str) -> dict[str, Any]:
    try:
        return read_yaml(Path(path))
    except UsageError as error:
        raise UsageError(f"--config {error}") from error


def refuse_with_resume(argv: Sequence[str]) -> None:
    """Refuse presets and files with --resume: a resumed run has its settings already."""
    for flag in ("--preset", "--config"):
        if value_of(flag, argv) is not None:
            raise UsageError(f"{flag} cannot be used with --resume: the run keeps the settings it was started with")


def as_flags(settings: Mapping[str, Any], command: type, where: str) -> list[str]:
    """``settings`` as words of the command line; ``where`` names their source in errors."""
    words: list[str] = []
    hints = get_type_hints(command)
    for name, value in settings.items():
        _check_name(name, hints, where)
        section = hints[name]
        if is_dataclass(section):
            if not isinstance(value, Mapping):
                raise UsageError(f"{where}: {name} must be a section with its own lines, not {short(value)}")
            inner, others = get_type_hints(section), getattr(section, "other_names", {})
            for key, item in value.items():
                own = others.get(key, key)
                _check_name(own, inner, where, prefix=f"{name}.")
                words += _flag(own, item, inner[own], f"{where}: {name}.{key}")
        else:
            words += _flag(name, value, section, f"{where}: {name}")
    return words


def _flag(name: str, value: Any, kind: Any, where: str) -> list[str]:
    """The words for one setting; ``kind`` is the type of its field."""
    switch = kind is bool
    if switch and not isinstance(value, bool):
        raise UsageError(f"{where} must be true or false, not {short(value)}")
    several = get_origin(kind) in (tuple, dict)
    if isinstance(value, list | tuple | dict) and not several:
        raise UsageError(f"{where} must be a single value, not {short(value)}")
    flag = flag_of(name)
    match value:
        case bool() if switch:
            return [flag if value else flag_of(f"no_{name}")]
        case dict():
            return [flag, *write_key_values(value)]
        case list() | tuple():
            return [flag, *map(str, value)]
        case _:
            return [flag, str(value)]


def _check_name(name: Any, known: Any, where: str, prefix: str = "") -> None:
    if name in known:
        return
    near = difflib.get_close_matches(str(name), list(known), n=1)
    hint = f" Did you mean {prefix}{near[0]}?" if near else f" Known: {', '.join(sorted(known))}."
    raise UsageError(f"{where}: {prefix}{name} is not a setting.{hint}")


def value_of(flag: str, argv: Sequence[str]) -> str | None:
    """The last value of ``flag``, written with a space or with ``=``."""
    value = None
    for word, following in pairwise([*argv, None]):
        assert word is not None
        if word == flag and following is not None:
            value = following
        elif word.startswith(flag + "="):
            value = word.partition("=")[2]
    return value
