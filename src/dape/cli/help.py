"""The help of ``dape`` and of its commands: what it does, three examples, the most used flags, the others in groups.

Tyro parses the arguments but does not print the help: it would show Python types (``{None}|INT``, ``(default: None)``)
and flags that a command refuses, all in one box. No torch here.
"""

import inspect
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dape.cli.fields import with_flags
from dape.cli.flags import SECTIONS, Flag, flags_of
from dape.cli.probe import FOR_CHECKPOINT, FOR_TRAINING

if TYPE_CHECKING:
    from dape.cli.commands import Command

WIDEST, FLAG_COLUMN = 100, 22
FIRST_FLAGS, FIRST_EXAMPLES = 5, 3
FIRST = {
    "compare": ("data", "methods", "seeds", "out", "resume"),
    "train": ("encoding", "data", "steps", "preset", "out"),
    "eval": ("lengths", "last_k", "data", "windows", "json"),
    "probe": ("train", "lengths", "samples", "tasks", "methods"),
    "che": ("budget", "tasks", "methods", "seeds", "out"),
    "extend": ("data", "train_length", "out", "steps", "method"),
    "generate": ("prompt", "tokens", "temperature", "top_p", "seed"),
    "visualize": ("length", "layers", "heads", "samples", "out"),
    "prepare": ("out", "tokenizer", "validation_share", "overwrite", "check"),
    "reproduce": ("scale", "seeds", "budget", "data", "dry_run"),
}
"""The most used flags of a command. For other commands these are the first fields of their class."""
REFUSED = {"compare": {"encoding", "seed"}}
"""Flags of a shared section that a command does not take."""
GROUPS: Mapping[str, set[str]] = {
    "What is tested": {"lengths", "last_k", "windows", "protocol", "mode", "reach", "samples", "depths", "stride"},
    "Files": {"out", "json", "figure", "config", "resume", "preset", "overwrite", "data", "tensorboard", "wandb"},
    "Where it computes": {"device", "threads", "jobs", "parallel", "processes", "restarts", "workers"},
}
OWN_GROUPS: Mapping[str, Mapping[str, set[str]]] = {
    "probe": {"With CHECKPOINT": set(FOR_CHECKPOINT), "With --train": set(FOR_TRAINING)}
}
CHAPTERS = {
    "Begin": ("compare", "list", "draw", "doctor"),
    "Train and measure": ("prepare", "train", "eval", "generate", "probe", "che"),
    "Look at results": ("report", "runs", "visualize", "mechanism"),
    "Models of Hugging Face": ("export", "import", "extend", "harness"),
    "The paper, and studies": ("reproduce", "evidence", "study adapters"),
    "Your own implementation": ("verify", "vectors"),
    "Speed and files": ("bench", "checkpoint merge"),
}
GLOBAL = {
    "-h, --help": "help on dape or a command: `dape help COMMAND` is the same",
    "-q, --quiet": "results and errors only, no progress",
    "-v, --verbose": "progress more often, and a traceback with each error",
    "-V, --version": "the version: `dape version` is the same",
}


# dape itself ---------------------------------------------------------------------------------------------------------


def overview(description: str, commands: "Sequence[Command]", groups: Mapping[str, str]) -> str:
    """All commands by chapter, each with its summary."""
    summaries = {command.name: command.summary for command in commands}
    for group, about in groups.items():
        members = ", ".join(command.words[1] for command in commands if command.words[0] == group)
        summaries[group] = f"{about} {members}."
    lines = [description]
    for chapter, names in CHAPTERS.items():
        lines += ["", chapter, *(_entry(name, summaries[name]) for name in names if name in summaries)]
    return "\n".join([*lines, "", "Everywhere", *(_entry(flag, words) for flag, words in GLOBAL.items())])


def group_help(group: str, about: str, commands: "Sequence[Command]") -> str:
    inner = [command for command in commands if command.words[0] == group]
    lines = [f"usage: dape {group} COMMAND [OPTIONS]", "", about, ""]
    return "\n".join([*lines, *(_entry(command.name, command.summary) for command in inner)])


# A command -----------------------------------------------------------------------------------------------------------


def command_help(command: "Command") -> str:
    flags = [f for f in flags_of(command.config) if f.name not in REFUSED.get(command.name, ())]
    positional = [flag for flag in flags if flag.positional]
    others = [flag for flag in flags if not flag.positional]
    first = _first(command.name, others)
    about, *paragraphs = (inspect.getdoc(command.config) or "").split("\n\n")
    examples = list(command.examples.items())
    lines = [
        " ".join(["usage: dape", command.name, *(f.shown for f in positional), "[OPTIONS]" if others else ""]).rstrip(),
        "",
        *(_filled(p) + "\n" for p in [about, *paragraphs]),
        "Examples",
        *(line for each in examples[:FIRST_EXAMPLES] for line in _example(command.name, *each)),
    ]
    rest = [flag for flag in others if flag not in first]
    titled = {"Arguments": positional, "Most used" if rest else "Options": first, **_grouped(command.name, rest)}
    for title, of in titled.items():
        lines += ["", title, *(_entry(flag.shown, flag.text) for flag in of)] if of else []
    if more := examples[FIRST_EXAMPLES:]:
        lines += ["", "More examples", *(line for each in more for line in _example(command.name, *each))]
    return with_flags("\n".join(lines), [command.config], positional=False)


def _first(name: str, flags: Sequence[Flag]) -> list[Flag]:
    if len(flags) <= FIRST_FLAGS + 1:
        return list(flags)
    wanted = FIRST.get(name) or [flag.name for flag in flags if not flag.group][:FIRST_FLAGS]
    return [flag for each in wanted for flag in flags if flag.name == each]


def _grouped(name: str, flags: Sequence[Flag]) -> dict[str, list[Flag]]:
    own = OWN_GROUPS.get(name, {})
    titles = [*own, "More", *GROUPS, *SECTIONS.values()]
    found: dict[str, list[Flag]] = {title: [] for title in titles}
    for flag in flags:
        themes = [title for groups in (own, GROUPS) for title, names in groups.items() if flag.name in names]
        found[flag.group or (themes[0] if themes else "More")].append(flag)
    return found


def _example(name: str, arguments: str, what: str) -> list[str]:
    deeper = " " * 6
    command = _filled(f"dape {name} {arguments}", initial_indent="  ", subsequent_indent=deeper)
    return [command, _filled(what, initial_indent=deeper, subsequent_indent=deeper)]


def _entry(left: str, text: str) -> str:
    """``left`` and ``text`` side by side; if ``left`` is too wide, the text below it."""
    indent = " " * (FLAG_COLUMN + 4)
    filled = _filled(text, initial_indent=indent, subsequent_indent=indent)
    return f"  {left}\n{filled}" if len(left) > FLAG_COLUMN else f"  {left:<{FLAG_COLUMN}}  {filled.lstrip()}"


def _filled(text: str, **indents: Any) -> str:
    width = min(shutil.get_terminal_size().columns, WIDEST)
    return textwrap.fill(
        " ".join(text.split()), max(width, 40), break_long_words=False, break_on_hyphens=False, **indents
    )
