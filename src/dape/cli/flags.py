"""The flags of a command, for its help and for messages about invalid arguments. No torch here."""

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

from dape.actions.fields import Jobs, OfCheckpoint, OnDevice, OnThreads
from dape.bench.options import WithFile, WithTorch
from dape.cli.fields import attribute, flag_of

SECTIONS = {"model": "The model", "train": "Training", "where": "On a cluster", "config": "The study"}
COMMON = (OfCheckpoint, Jobs, OnDevice, OnThreads, WithFile, WithTorch)
"""Their flags come after a command's own."""


@dataclass(frozen=True)
class Flag:
    name: str
    shown: str
    """The flag with its values, such as ``--seeds N``."""
    text: str
    group: str
    """Title of its section; empty for fields of the command itself."""
    kind: Any
    """Type of its value or values, without None."""
    positional: bool = False
    required: bool = False
    optional: bool = False
    """Whether its value may be None."""

    @property
    def typed(self) -> str:
        """The flag alone, such as ``--seeds``."""
        return self.shown if self.positional else self.shown.partition(" ")[0].rstrip(",")

    @property
    def is_switch(self) -> bool:
        return self.kind is bool and " {" not in self.shown

    @property
    def takes_several(self) -> bool:
        return get_origin(self.kind) in (tuple, dict)


def flags_of(config: type, group: str = "") -> Iterator[Flag]:
    """The flags of a command, with those of its sections."""
    hints, texts = get_type_hints(config, include_extras=True), _docstrings(config)
    common = {each.name for kind in COMMON if issubclass(config, kind) for each in fields(kind)}
    for each in sorted(fields(config), key=lambda each: each.name in common):
        kind, marks = _without_marks(hints[each.name])
        if is_dataclass(kind):
            assert isinstance(kind, type)
            yield from flags_of(kind, SECTIONS.get(each.name, each.name.capitalize()))
        elif tyro.conf.Suppress not in marks:
            default = each.default if each.default_factory is MISSING else each.default_factory()
            positional = tyro.conf.Positional in marks
            name = attribute(marks, "name") or each.name
            values = attribute(marks, "metavar") or _values(kind, name)
            shown = values if positional else _shown(name, kind, values, default)
            text = _with_default(texts.get(each.name, ""), default)
            hint = hints[each.name]
            required, optional = default is MISSING, type(None) in get_args(hint.__origin__ if marks else hint)
            yield Flag(each.name, shown, text, group, kind, positional, required, optional)


def _without_marks(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """The type without ``Annotated`` and ``| None``, and the marks that ``Annotated`` carries."""
    marks = getattr(hint, "__metadata__", ())
    kind = hint.__origin__ if marks else hint
    if get_origin(kind) in (Union, types.UnionType):
        kinds = [of for of in get_args(kind) if of is not type(None)]
        kind = kinds[0] if len(kinds) == 1 else kind
    return kind, marks


def _values(kind: Any, name: str) -> str:
    if get_origin(kind) is Literal:
        return "{" + ",".join(map(str, get_args(kind))) + "}"
    if get_origin(kind) is tuple:
        inner, *more = get_args(kind)
        return f"{_values(inner, name)} ..." if more == [...] else " ".join(_values(of, name) for of in (inner, *more))
    return {int: "N", float: "NUMBER", Path: "PATH", str: "TEXT"}.get(kind, name.upper())


def _shown(name: str, kind: Any, values: str, default: Any) -> str:
    if kind is bool and default is None:
        return f"{flag_of(name)} {{True,False}}"
    if kind is bool:
        return f"{flag_of(name)}, {flag_of(f'no_{name}')}" if default else flag_of(name)
    return f"{flag_of(name)} {values}"


def _with_default(text: str, default: Any) -> str:
    """Append the default, unless there is none or the text names it."""
    if default is MISSING or default in (None, (), "", False, {}) or "by default" in text:
        return text
    words = "on" if default is True else " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
    return f"{text} [{words}]"


@functools.cache
def _docstrings(config: type) -> dict[str, str]:
    """The docstring below each field, inherited fields included."""
    found: dict[str, str] = {}
    for each in reversed([kind for kind in config.__mro__ if is_dataclass(kind)]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(tree, ast.ClassDef)
        for field, below in zip(tree.body, tree.body[1:], strict=False):
            text = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else None
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, str):
                found[field.target.id] = " ".join(text.split())
    return found
