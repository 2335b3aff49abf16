"""Read files that may be damaged, cut off, edited by hand or malicious. No torch here.

Reading runs no code. Every problem is a ValueError that states file, field, what was found and what was expected. The
content of a kind of file is described by a dataclass or a TypedDict, and checked by :func:`as_record`.
"""

import contextlib
import functools
import json
import re
import reprlib
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import yaml

from dape.files import sha256, sha256_of

T = TypeVar("T")
Count = Annotated[int, range(1 << 63)]
"""A whole number of 0 or more."""
Sha256 = Annotated[str, re.compile("[0-9a-f]{64}")]
FileName = Annotated[str, re.compile(r"(?!\.\.?$)[^/\\\x00-\x1f\ud800-\udfff]{1,255}")]
"""A name without a path, so that the file is in its folder."""
CHECKSUM = "checksum"
DEEPEST, LARGEST = 64, 5_000_000
"""Most levels and entries of a JSON file. Real files have a dozen levels; vocabularies have a million entries."""
LARGEST_YAML = 100_000
"""Most entries of a YAML file after its aliases are expanded. Nested aliases can expand to more than fits in memory."""


# Errors --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def reading(path: Path | str, what: str = "cannot be read", advice: str = "") -> Iterator[None]:
    """Turn errors about the content of ``path``, of our code or of a library, into a ValueError that names ``path``."""
    try:
        yield
    except BaseException as error:
        names_path = str(error).startswith(str(path)) and isinstance(error, ValueError)
        # Libraries written in Rust may raise PanicException, which is not an Exception.
        about_content = isinstance(error, Exception) or type(error).__name__ == "PanicException"
        from_system = isinstance(error, OSError) and error.errno is not None
        if names_path or not about_content or from_system:
            raise
        raise ValueError(f"{path}: {what} ({reason(error)}). {advice}".rstrip()) from error


def reason(error: BaseException) -> str:
    """The message of an error in one line; if it is empty, the error's type."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= 300 else f"{words[:300]} ..."


def short(value: Any) -> str:
    """A value for an error message: a long one is cut."""
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_SHORT.maxlevel = 3


# Text ----------------------------------------------------------------------------------------------------------------


def parse_json(text: str | bytes) -> Any:
    """``json.loads`` of UTF-8, with a ValueError for deep nesting, too many entries, and names that occur twice."""
    text = text.decode("utf-8") if isinstance(text, bytes) else text
    try:
        return _check_size(json.loads(text, object_pairs_hook=_without_doubles), LARGEST)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_yaml(text: str) -> Any:
    """``yaml.safe_load``, with the checks of :func:`parse_json`."""
    try:
        return _check_size(yaml.load(text, _Loader), LARGEST_YAML)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except Exception as error:  # the library raises KeyError, AttributeError and others on invalid values
        raise ValueError(reason(error)) from error


def read_json(path: Path, advice: str = "") -> dict[str, Any]:
    """Read a JSON object."""
    with reading(path, "is not what it should be", advice):
        return _object(parse_json(path.read_text(encoding="utf-8")))


def _object(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ValueError(f"found {short(content)}, expected an object with names and values")
    return content


def read_json_lines(path: Path) -> Iterator[tuple[int, bool, bytes]]:
    """For every line that is not empty: its number, whether it is complete (ends in a line break), and its content."""
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, number < len(lines), line


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{short(next(n for n in names if names.count(n) > 1))} occurs twice")
    return content


class _Loader(yaml.SafeLoader):
    def fetch_flow_collection_start(self, TokenClass: Any) -> None:
        """Refuse deep nesting early: with thousands of nested brackets the library takes seconds to fail."""
        if self.flow_level > DEEPEST:
            raise ValueError("nested too deeply")
        super().fetch_flow_collection_start(TokenClass)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise ValueError(f"{short(key.value)} occurs twice")
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _check_size(content: Any, most: int) -> Any:
    """The content. ValueError if it has more than ``most`` entries or too many levels."""
    level = [content]
    for _ in range(DEEPEST):
        level = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        most -= sum(map(len, level))
        if most < 0:
            raise ValueError("it has too many values")
        level = [value for each in level for value in each]
        if not level:
            return content
    raise ValueError("nested too deeply")


# Records -------------------------------------------------------------------------------------------------------------


def as_record(kind: type[T], given: Any, where: Path | str = "") -> T:
    """Convert ``given`` to a dataclass, a TypedDict or any other type ``kind``.

    Checks names, types, ranges (``Annotated[int, range(...)]``), patterns (``Annotated[str, re.compile(...)]``), and
    calls the dataclass's ``check()``. ValueError on any difference, beginning with ``where``.
    """
    try:
        return _convert(given, kind, "")
    except ValueError as error:
        raise ValueError(f"{where}: {error}" if where else str(error)) from error


def read_record(path: Path, kind: type[T], advice: str = "", *, version: int | None = None) -> T:
    """Read a JSON file whose content is described by ``kind``, and compare its checksum if it has one. ``version``: the
    only value of ``format`` that is read."""
    given = read_json(path, advice)
    if version is not None and (found := given.get("format")) != version:
        words = f"{path}: format {found}, while this version of dape reads format {version}. {advice}"
        raise ValueError(words.rstrip())
    with reading(path, "is damaged", advice):
        check_seal(given)
        return as_record(kind, unsealed(given), path)


def _record(kind: Any, given: Any, name: str) -> Any:
    if not isinstance(given, Mapping):
        raise _wrong(name, given, "a section with names and values")
    inner = f"{name}." if name else ""
    hints, needed = _described(kind)
    others: Mapping[str, str] = getattr(kind, "other_names", {})  # see dape.config.names
    hints = {**hints, **{other: hints[own] for other, own in others.items()}} if others else hints
    unknown = [key for key in given if key not in hints]
    if unknown:
        raise ValueError(f"{inner}{short(unknown[0])} is not known; expected {', '.join(_described(kind)[0])}")
    missing = [key for key in needed if key not in {others.get(each, each) for each in given}]
    if missing:
        raise ValueError(f"has no {', '.join(inner + key for key in missing)}")
    values = {key: _convert(value, hints[key], inner + key) for key, value in given.items()}
    if is_typeddict(kind):
        return values
    try:
        made = kind(**values)
    except ValueError as error:
        raise ValueError(f"{name}: {error}" if name else str(error)) from error
    if check := getattr(made, "check", None):
        try:
            check()
        except ValueError as error:
            raise ValueError(f"{name}: {error}" if name else str(error)) from error
    return made


@functools.cache
def _described(kind: Any) -> tuple[dict[str, Any], list[str]]:
    """The types of all fields by name, and the names of the required ones."""
    hints = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        plain = {name: get_args(h)[0] if get_origin(h) is NotRequired else h for name, h in hints.items()}
        return plain, [name for name in plain if name in kind.__required_keys__]
    assert is_dataclass(kind)
    own = [f for f in fields(kind) if f.init]
    needed = [f.name for f in own if f.default is MISSING and f.default_factory is MISSING]
    return {f.name: hints[f.name] for f in own}, needed


def _convert(value: Any, hint: Any, name: str) -> Any:
    """Convert a value to its type (a list becomes a tuple), or raise ValueError."""
    if hint is Any or (hint in _NAMES and _is(value, hint)):
        return _number(value, name) if hint is float else value
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _within(_convert(value, inner[0], name), inner[1:], name)
    if is_dataclass(hint) or is_typeddict(hint):
        return _record(hint, value, name)
    if origin in (Union, types.UnionType):
        return _either(value, inner, name)
    if origin is Literal and any(type(value) is type(each) and value == each for each in inner):
        return value
    if origin in (tuple, list) and isinstance(value, list | tuple):
        return _sequence(value, origin, inner, name)
    if origin is dict and isinstance(value, dict):
        named = {_convert(key, inner[0], f"{name}: a name"): each for key, each in value.items()}
        return {key: _convert(each, inner[1], f"{name}.{key}" if name else key) for key, each in named.items()}
    expected = (
        " or ".join(map(repr, inner)) if origin is Literal else _NAMES.get(hint) or _SEVERAL.get(origin, str(hint))
    )
    raise _wrong(name, value, expected)


_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "nothing"}
_SEVERAL = {tuple: "a list", list: "a list", dict: "names and values"}


def _is(value: Any, kind: Any) -> bool:
    if kind is int:
        return type(value) is int and -(1 << 63) <= value < 1 << 63
    if kind is float:
        return type(value) in (int, float)
    return isinstance(value, kind) and (kind is not str or _is_text(value))


def _sequence(value: Any, origin: Any, kinds: tuple[Any, ...], name: str) -> Any:
    if kinds[0] is float and all(type(each) is float for each in value):
        return origin(value)  # for speed: rows have hundreds of floats
    if origin is list or kinds[-1] is ...:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise _wrong(name, value, f"{len(kinds)} values")
    pairs = enumerate(zip(value, kinds, strict=True))
    return origin([_convert(each, kind, f"{name}[{index}]") for index, (each, kind) in pairs])


def _either(value: Any, hints: tuple[Any, ...], name: str) -> Any:
    errors = []
    for hint in hints:
        try:
            return _convert(value, hint, name)
        except ValueError as error:
            errors.append(error)
    raise errors[0]


def _is_text(value: str) -> bool:
    """Whether a string can be printed and name a file. JSON can contain half characters (\\ud83d), which cannot."""
    return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)


def _number(value: Any, name: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise _wrong(name, value, "a number below 1e308") from None


def _within(value: Any, limits: tuple[Any, ...], name: str) -> Any:
    for limit in limits:
        if isinstance(limit, range) and value not in limit:
            raise _wrong(name, value, f"{limit.start} to {limit.stop - 1}")
        if isinstance(limit, re.Pattern) and not limit.fullmatch(value):
            raise _wrong(name, value, f"a text like {limit.pattern}")
    return value


def _wrong(name: str, found: Any, expected: str) -> ValueError:
    return ValueError(f"{name or 'content'}: found {short(found)}, expected {expected}")


# Checksums -----------------------------------------------------------------------------------------------------------


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with its own checksum, for :func:`check_seal`. Files of older versions have none."""
    return {**unsealed(content), CHECKSUM: _digest(content)}


def check_seal(given: Mapping[str, Any]) -> None:
    """Raise ValueError if the content has a checksum that differs."""
    if CHECKSUM in given and _digest(given) != given[CHECKSUM]:
        raise ValueError("it has been changed since it was written: its checksum differs")


def unsealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content without its checksum."""
    return {name: value for name, value in content.items() if name != CHECKSUM}


def _digest(content: Mapping[str, Any]) -> str:
    return sha256_of(json.dumps(unsealed(content), sort_keys=True))


def check_files(folder: Path, checksums: Mapping[str, str], advice: str) -> None:
    """Raise ValueError if a file is missing or its sha256 differs."""
    for name, expected in checksums.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{path}: is missing. {advice}")
        if (found := sha256(path)) != expected:
            sums = f"expected sha256 {expected[:16]}, found {found[:16]}"
            raise ValueError(f"{path}: damaged, it is not what was written (checksums differ: {sums}). {advice}")
