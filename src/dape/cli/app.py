"""The ``dape`` command: parse arguments, run a command, turn failures into messages and exit codes.

Exit codes: 0 success, 1 failure, 2 invalid arguments, 130 interrupted, 141 standard output is a closed pipe.
Nothing here imports torch; commands import it when they run.
"""

import contextlib
import difflib
import errno
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from itertools import takewhile

import tyro
from tyro.extras import SubcommandApp

from dape._version import __version__
from dape.cli.commands import COMMANDS, GROUPS, Command
from dape.cli.fields import with_flags
from dape.cli.help import command_help, group_help, overview
from dape.cli.limits import check_limits
from dape.cli.usage import mistake
from dape.errors import UsageError
from dape.ops.switch import kernels_mode
from dape.verbosity import Verbosity, is_verbose, tell, use_verbosity

DESCRIPTION = """\
usage: dape COMMAND [OPTIONS]

DAPE: positional encodings for transformers that adapt to the data.

New here?
  dape compare           train encodings on short texts, test them on long ones
  dape list kerple       which encodings there are, and what they compute
  dape help compare      everything a command can do

In Python, a name from the list becomes a module:
  pe = dape.build("dape-kerple", num_heads=12, head_dim=64, train_length=512)"""
VERBOSITY: dict[str, Verbosity] = {"-q": "quiet", "--quiet": "quiet", "-v": "verbose", "--verbose": "verbose"}

OF_COMMAND = "_dape_command"
"""The attribute of an exception that names the command whose arguments its message speaks of."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``dape`` with the given arguments (the process's own by default) and return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # the streams of notebooks lack reconfigure
            stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    return exit_code_of(lambda: _dispatch(list(sys.argv[1:] if argv is None else argv)))


def exit_code_of(work: Callable[[], int]) -> int:
    """Call ``work`` and return its exit code. An expected exception becomes a message and the exit code for it."""
    try:
        code = work()
        sys.stdout.flush()  # a closed pipe raises here; at interpreter exit it could not be caught
        return code
    except BrokenPipeError:
        # As in `dape list | head`. Python flushes stdout again when it exits, so stdout must lead somewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt as error:
        return _fail(error, 130, message="; ".join(filter(None, ["interrupted", *getattr(error, "__notes__", ())])))
    except UsageError as error:
        return _fail(error, 2)
    except UnicodeEncodeError as error:  # Python decodes arguments that are not UTF-8 as lone surrogates
        return _fail(error, 2, message=f"{error.object[:40]!r}: is not text in UTF-8")
    except (ValueError, TypeError, OSError, MemoryError) as error:
        # A name too long for a file is an invalid argument. Other errors of the system count as failures.
        return _fail(error, 2 if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG else 1)
    except RuntimeError as error:
        # Torch raises it when memory runs out. Any other RuntimeError is a bug of ours: keep the traceback.
        if not re.search(r"memory|storage size", str(error), re.IGNORECASE):
            raise
        return _fail(error, 1, message=f"not enough memory: {str(error).splitlines()[0]}")


def _fail(error: BaseException, code: int, message: str | None = None) -> int:
    """Print one line and return ``code``; with --verbose raise the error, for its traceback."""
    if os.environ.get("DAPE_DEBUG") == "1" or is_verbose():
        raise error
    own: type | None = getattr(error, OF_COMMAND, None)
    text = message or str(error).strip() or type(error).__name__
    text = with_flags(text, [*filter(None, [own]), *(c.config for c in COMMANDS)])
    print(f"dape: {text}", file=sys.stderr)
    if code == 1:
        print("(--verbose shows where)", file=sys.stderr)
    return code


def _dispatch(argv: list[str]) -> int:
    for word in VERBOSITY.keys() & set(argv):
        use_verbosity(VERBOSITY[word])
    argv = [word for word in argv if word not in VERBOSITY]
    if argv in (["--version"], ["-V"], ["version"]):
        print(f"dape {__version__}")
        return 0
    _refuse_empty(argv)
    argv = _with_runs_list(argv)
    words = list(takewhile(lambda word: not word.startswith("-"), argv))
    if argv[:1] == ["help"] or {"-h", "--help"} & set(argv):
        return _help(words[1:] if argv[:1] == ["help"] else words)
    if words == argv and _is_incomplete(words):
        with contextlib.redirect_stdout(sys.stderr):
            _help(words)
        return 2
    if argv[0].startswith("--tyro-"):
        return _completion(argv)
    command = _chosen(argv, words)
    config = _parse(command, argv[len(command.words) :])
    check_limits(config)
    kernels_mode()  # refuses an invalid DAPE_KERNELS now, not hours later in a child process
    begin = time.monotonic()
    try:
        return command.run(config)
    except KeyboardInterrupt as stop:
        stop.add_note(command.continues(config))
        raise
    except Exception as error:
        setattr(error, OF_COMMAND, command.config)
        raise
    finally:
        if is_verbose():
            tell(f"dape {__version__}: {command.name} took {time.monotonic() - begin:.1f} s")


def _with_runs_list(argv: list[str]) -> list[str]:
    """Turn `dape runs` and `dape runs DIR` into `dape runs list`; not for a mistyped command."""
    if argv[:1] != ["runs"]:
        return argv
    known = [command.words[1] for command in COMMANDS if command.words[0] == "runs"]
    folder = argv[1] if len(argv) > 1 else ""
    mistyped = difflib.get_close_matches(folder, known) and (len(argv) > 2 or not os.path.isdir(folder))
    if mistyped or folder in [*known, "-h", "--help"]:
        return argv
    return ["runs", "list", *argv[1:]]


def _help(words: list[str]) -> int:
    """Print the help of a command, of a group, or (no words) of dape."""
    for command in COMMANDS:
        if words[: len(command.words)] == command.words:
            print(command_help(command))
            return 0
    if words[:1] and words[0] in GROUPS:
        print(group_help(words[0], GROUPS[words[0]], COMMANDS))
    elif words:
        raise _no_command(words)
    else:
        print(overview(DESCRIPTION, COMMANDS, GROUPS))
    return 0


def _refuse_empty(argv: list[str]) -> None:
    """Refuse empty arguments, such as "$RUN" when RUN is not set: an empty path would mean the current folder."""
    flag = "an argument"
    for word in argv:
        flag = word.partition("=")[0] if word.startswith("--") else flag
        if word in ("", f"{flag}="):
            raise UsageError(f"{flag} is empty; is a shell variable not set?")


def _chosen(argv: list[str], words: list[str]) -> Command:
    for command in COMMANDS:
        if argv[: len(command.words)] == command.words:
            return command
    if not words:
        near = difflib.get_close_matches(argv[0], ["--help", "--version", *VERBOSITY], n=1)
        hint = f"did you mean `dape {near[0]}`?" if near else f"flags follow a command, as in `dape compare {argv[0]}`"
        raise UsageError(f"{argv[0]}: {hint}")
    raise _no_command(words)


def _no_command(words: list[str]) -> UsageError:
    near = _suggest(words)
    hint = f" Did you mean `dape {near}`?" if near else ""
    typed = " ".join(words[: 2 if words[0] in GROUPS else 1])
    return UsageError(f"there is no command {typed!r}.{hint} `dape help` lists them all.")


def _parse(command: Command, typed: list[str]) -> object:
    """Parse the words after the command into its dataclass."""
    configs = {each.name: each.config for each in COMMANDS}
    argv = command.expand(typed) if command.expand is not None else typed
    if wrong := mistake(command.name, typed, configs):
        raise UsageError(f"{wrong}\n(`dape help {command.name}` says more)")
    return tyro.cli(command.config, prog=f"dape {command.name}", args=argv)


def _completion(argv: list[str]) -> int:
    """Let tyro print the completion script of a shell, for all commands."""
    app, groups = SubcommandApp(), {}
    for command in COMMANDS:
        *group, name = command.words
        if group and group[0] not in groups:
            groups[group[0]] = app.command(SubcommandApp(), name=group[0], help=GROUPS[group[0]])
        parent = groups[group[0]] if group else app
        parent.command(name=name, help=command.summary)(command.config)
    try:
        app.cli(prog="dape", args=argv)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    return 0


def _is_incomplete(words: list[str]) -> bool:
    """True for `dape` and for `dape bench`, which need another word."""
    return any(len(words) < len(c.words) and c.words[: len(words)] == words for c in COMMANDS)


def _suggest(words: list[str]) -> str | None:
    """The most similar command, if it is similar enough."""

    def similarity(command: Command) -> float:
        typed = " ".join(words[: len(command.words)])
        return difflib.SequenceMatcher(None, typed, command.name).ratio()

    nearest = max(COMMANDS, key=similarity)
    return nearest.name if similarity(nearest) >= 0.6 else None
