"""Messages about invalid arguments, in a sentence or two. No torch here.

Tyro parses the arguments, but its messages are boxes that show Python types, list flags of other commands and point to
the help of ``dape`` as a whole.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from dape.cli.flags import Flag, flags_of
from dape.errors import did_you_mean

CLOSE = 0.85
"""From this similarity on, a flag counts as mistyped even if another command has a flag of that name."""


def mistake(name: str, argv: Sequence[str], configs: Mapping[str, type]) -> str | None:
    """The first mistake in the words after the command ``name``, or None; the command may find others.

    ``configs`` has the settings class of every command.
    """
    return next(_mistakes(name, argv, configs), None)


def _mistakes(name: str, argv: Sequence[str], configs: Mapping[str, type]) -> Iterator[str]:
    flags = list(flags_of(configs[name]))
    known = {word: flag for flag in flags for word in _words(flag)}
    positional = [flag for flag in flags if flag.positional]
    loose: list[str] = []
    given: set[str] = set()
    for word, values in _sections(argv):
        flag = known.get(word) if word else None
        if word and flag is None:
            yield _unknown(name, word, known, configs)
        elif flag is None:
            loose += values
        else:
            given.add(flag.typed)
            count = 0 if flag.is_switch else len(values) if flag.takes_several else 1
            loose += values[count:]
            empty_is_valid = flag.is_switch or get_origin(flag.kind) is dict
            if not (values or empty_is_valid):
                yield f"{word} needs a value. {flag.text}"
            read = [value for value in values[:count] if not (flag.optional and value == "None")]
            yield from (f"{word} {value}: {why}" for value in read if (why := _refused(flag.kind, value)))
    for flag in flags:
        if flag.required and not flag.positional and flag.typed not in given:
            yield f"{flag.shown} is missing. {flag.text}"
    for flag in positional:
        taken = len(loose) if flag.takes_several else 1
        if flag.required and not loose:
            yield f"{flag.shown} is missing. {flag.text}"
        loose = loose[taken:]
    if loose:
        takes = " ".join(flag.shown for flag in positional)
        yield f"{loose[0]!r} is one argument too many: `dape {name}` takes {takes or 'flags only'}"


def _words(flag: Flag) -> Iterator[str]:
    if not flag.positional:
        yield flag.typed
        if flag.kind is bool:
            yield flag.typed.replace("--", "--no-", 1)


def _sections(argv: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag with the words that follow it. Words before the first flag come with an empty name."""
    word, values = "", []
    for each in argv:
        if not each.startswith("-") or each == "-" or _is_number(each):
            values.append(each)
            continue
        yield word, values
        name, equals, value = each.partition("=")
        word, values = (
            "--" + name.lstrip("-").replace("_", "-") if name.startswith("--") else name,
            [value] * bool(equals),
        )
    yield word, values


def _unknown(name: str, word: str, known: Mapping[str, Flag], configs: Mapping[str, type]) -> str:
    told = f"`dape {name}` has no flag {word}."
    others = [
        each for each, config in configs.items() if word in {w for flag in flags_of(config) for w in _words(flag)}
    ]
    near = difflib.get_close_matches(word, known, n=1, cutoff=CLOSE if others else 0.6)
    if near:
        return f"{told} Did you mean {known[near[0]].shown}?"
    return f"{told} It is one of `dape {others[0]}`." if len(others) == 1 else told


def _refused(kind: Any, value: str) -> str | None:
    """Why the value is invalid; None if it is valid or if only the command can tell."""
    if get_origin(kind) is tuple:
        inner = {of for of in get_args(kind) if of is not ...}
        return _refused(inner.pop(), value) if len(inner) == 1 else None
    if get_origin(kind) is Literal:
        choices = [str(choice) for choice in get_args(kind)]
        return None if value in choices else f"not one of {', '.join(choices)}.{did_you_mean(value, choices)}"
    if get_origin(kind) is dict:
        return None if value.partition("=")[1] and not value.startswith("=") else "not NAME=VALUE"
    if kind is bool:
        return None if value in ("True", "False") else "not True or False"
    if kind is int and not _reads(int, value):
        return "not a whole number"
    return "not a number" if kind is float and not _reads(float, value) else None


def _is_number(word: str) -> bool:
    return _reads(float, word)


def _reads(kind: Callable[[str], Any], value: str) -> bool:
    try:
        kind(value)
    except ValueError:
        return False
    return True
