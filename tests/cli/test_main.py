"""What every command shares: help, version, exit codes, and failures without tracebacks."""

import dataclasses
import errno
import importlib.metadata
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tyro

import dape
from dape.cli import app, commands, help, main
from dape.cli.fields import _arguments, flag_of
from dape.errors import UsageError


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"dape {dape.__version__}\n"
    assert importlib.metadata.version("dape") == dape.__version__


def test_console_script_is_main():
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="dape")
    assert script.load() is main


def test_help_leads_a_newcomer(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "dape list " in text and "dape.build(" in text
    for command in commands.COMMANDS:
        assert command.words[0] in text


@pytest.mark.parametrize("command", commands.COMMANDS, ids=lambda c: c.name)
def test_every_command_explains_itself(capsys, command):
    assert main([*command.words, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: dape {command.name} ") and command.summary in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 120
    missing = [f.name for f in dataclasses.fields(command.config) if not is_explained(f, text)]
    assert missing == []


def is_explained(field, text: str) -> bool:
    if dataclasses.is_dataclass(field.default_factory):  # a section: its fields are flags
        section = [each.name for each in dataclasses.fields(field.default_factory)]
        return all(f"--{name.replace('_', '-')}" in text for name in section if name != "vocabulary")
    return f"--{field.name.replace('_', '-')}" in text or field.name.upper().removesuffix("S") in text


@pytest.mark.parametrize(
    ("command", "arguments"),
    [(command, arguments) for command in commands.COMMANDS for arguments in command.examples],
    ids=lambda x: x if isinstance(x, str) else x.name,
)
def test_examples_of_the_help_are_valid(capsys, monkeypatch, command, arguments):
    received = []
    recording = dataclasses.replace(command, run=lambda config: received.append(config) or 0)
    monkeypatch.setattr(app, "COMMANDS", [recording if c is command else c for c in commands.COMMANDS])
    if "--resume" in arguments:  # reads the run, and there is none here
        recording = dataclasses.replace(recording, expand=None)
        monkeypatch.setattr(app, "COMMANDS", [recording if c.name == command.name else c for c in commands.COMMANDS])
    assert main([*command.words, *shlex.split(arguments)]) == 0
    assert [type(config) for config in received] == [command.config]


def test_overview_has_every_command_once(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    main(["help"])
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    chapters = [name for names in help.CHAPTERS.values() for name in names]
    assert sorted(chapters) == sorted(
        {c.words[0] if c.words[0] in ("bench", "runs") else c.name for c in commands.COMMANDS}
    )


@pytest.mark.parametrize("command", commands.COMMANDS, ids=lambda c: c.name)
def test_help_fits_80_columns_and_speaks_no_python(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["help", *command.words]) == 0
    text = capsys.readouterr().out
    assert not re.search(r"\{None\}|None\]|\(default: |\[\]|\[\(\)\]", text)
    assert [line for line in text.splitlines() if len(line) > 80 and " " in line.strip()] == []
    assert 1 <= text.partition("More examples")[0].count(f"\n  dape {command.name}") <= 3
    assert set(help.FIRST.get(command.name, ())) <= {flag.name for flag in help.flags_of(command.config)}


@pytest.mark.parametrize("command", commands.COMMANDS, ids=lambda c: c.name)
def test_help_has_every_flag_that_is_read(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    main([*command.words, "--help"])
    text = capsys.readouterr().out
    shown = set(re.findall(r"^. (--[a-z][a-z0-9-]*)", text, re.MULTILINE))
    with pytest.raises(SystemExit):
        tyro.cli(command.config, args=["--help"])
    read = set(re.findall(r"^. (--[a-z][a-z0-9-]*)", capsys.readouterr().out, re.MULTILINE))
    refused = {flag_of(name) for name in help.REFUSED.get(command.name, ())}
    assert shown == read - refused


@pytest.mark.parametrize(("argv", "told"), [("help nix", "`dape help`"), ("help compar", "`dape compare`")])
def test_help_of_what_is_no_command(capsys, argv, told):
    assert main(argv.split()) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("argv", ["version", "-V"])
def test_other_ways_to_ask_for_the_version(capsys, argv):
    assert main([argv]) == 0 and capsys.readouterr().out == f"dape {dape.__version__}\n"


def test_verbosity_is_said_anywhere_and_inherited(capsys, monkeypatch):
    monkeypatch.setenv("DAPE_VERBOSITY", "normal")
    assert main(["list", "-q", "kerple"]) == 0
    assert os.environ["DAPE_VERBOSITY"] == "quiet" and capsys.readouterr().err == ""
    assert main(["--verbose", "list", "kerple"]) == 0
    assert os.environ["DAPE_VERBOSITY"] == "verbose" and "list took" in capsys.readouterr().err


NOT_THERE = [
    "eval nix",
    "generate nix",
    "visualize nix",
    "mechanism nix",
    "probe nix",
    "checkpoint merge nix",
    "compare --data nix.txt",
    "train --data nix.txt",
    "che --budget 1",
    "compare --methods nix",
]


def test_mistakes_show_before_torch_is_imported(tmp_path):
    """It takes seconds, twenty of them on a busy machine."""
    code = (
        "import sys; from dape.cli import main\n"
        "for line in sys.argv[1:]:\n"
        "    assert main(line.split()) == 2, line\n"
        "    assert 'torch' not in sys.modules, line\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *NOT_THERE], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--budget 1: 140 runs would take at least 5 minutes" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_commands_are_imported():
    code = (
        "import sys, dape.cli\n"
        "class Stop:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'dape.cli.app':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Stop())\n"
        "sys.exit(dape.cli.main(['list']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "dape: interrupted\n")


def test_completion_of_shells(capsys):
    assert main(["--tyro-print-completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert "compare" in script and "--methods" in script


@pytest.mark.parametrize("words", [[], ["bench"]])
def test_without_a_command_help_is_shown_and_the_exit_code_is_2(capsys, words):
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and f"usage: {' '.join(['dape', *words])} " in shown.err


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        ("lst", "Did you mean `dape list`?"),
        ("lst kerple", "Did you mean `dape list`?"),
        ("bench atention", "Did you mean `dape bench attention`?"),
        ("attention --quick", "Did you mean `dape bench attention`?"),
        ("runs shw x", "Did you mean `dape runs show`?"),
        ("list --jsn", "`dape list` has no flag --jsn. Did you mean --json?"),
        ("compare --prompt x", "It is one of `dape generate`."),
        ("list kerple fire", "'fire' is one argument too many: `dape list` takes [FILTER]"),
        ("compare extra", "'extra' is one argument too many: `dape compare` takes flags only"),
        ("bench attention --lengths 8 x", "--lengths x: not a whole number"),
        ("compare --seeds=1.5", "--seeds 1.5: not a whole number"),
        ("bench attention --batch None", "--batch None: not a whole number"),
        ("extend model --data x --lengths None", "--lengths None: not a whole number"),
        ("che --budget abc", "--budget abc: not a number"),
        ("compare --mode packd", "--mode packd: not one of packed, same_document. Did you mean 'packed'?"),
        ("train --share_encoding maybe", "--share-encoding maybe: not True or False"),
        ("train --encoding-options hidden", "--encoding-options hidden: not NAME=VALUE"),
        ("compare --seeds", "--seeds needs a value. Runs per encoding"),
        ("compare --lengths --seeds 2", "--lengths needs a value. Lengths"),
        ("eval", "CHECKPOINT is missing. A run's folder"),
        ("export a", "--out PATH is missing. Folder to write"),
        ("verify x", "--as ENCODING is missing."),
        ("--vresion", "did you mean `dape --version`?"),
        ("--seeds 2 compare", "--seeds: flags follow a command"),
    ],
)
def test_wrong_command_line(capsys, argv, hint):
    assert main(argv.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and hint in shown.err and shown.err.startswith("dape: ") and "╭" not in shown.err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["train", "--out", ""], "--out is empty"),
        (["train", "--out="], "--out is empty"),
        (["compare", "--methods", "alibi", ""], "--methods is empty"),
        (["eval", "", "--lengths", "8"], "an argument is empty"),
    ],
)
def test_an_empty_value_is_refused(capsys, monkeypatch, tmp_path, argv, words):
    """``--out "$RUN"`` without RUN would be a run in the current folder."""
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    assert words in capsys.readouterr().err and not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "argv",
    ["compare --steps {}", "train --batch {}", "eval run --lengths 8 {}", "bench model --rounds -{}"],
)
def test_numbers_that_nothing_can_hold_are_refused(capsys, argv):
    assert main(argv.format("9" * 400).split()) == 2
    flag = re.findall("--[a-z]+", argv)[-1]
    assert f"{flag} must lie between -2^63 and 2^63 - 1, got a number of 400 digits" in capsys.readouterr().err


def test_no_suggestion_for_something_else(capsys):
    assert main(["frobnicate"]) == 2
    assert "Did you mean" not in capsys.readouterr().err


def failing(monkeypatch, error: BaseException) -> None:
    """Make ``dape list`` raise."""

    def run(config: object) -> int:
        raise error

    command = next(c for c in commands.COMMANDS if c.name == "list")
    monkeypatch.setattr(app, "COMMANDS", [dataclasses.replace(command, run=run)])


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UsageError("5 heads"), 2, "5 heads"),
        (ValueError("5 heads"), 1, "5 heads"),
        (TypeError("5 heads"), 1, "5 heads"),
        (FileNotFoundError(2, "No such file", "a.json"), 1, "No such file: 'a.json'"),
        (UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "surrogates"), 2, r"'a\udcff': is not text in UTF-8"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x"), 2, "File name too long: 'x'"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 1, "MemoryError"),
        (ValueError(" "), 1, "ValueError"),
        (RuntimeError("Storage size calculation overflowed with sizes=[9]"), 1, "not enough memory: Storage size"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 1, "not enough memory: Default"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, BaseException) else "",
)
def test_expected_failures(capsys, monkeypatch, error, code, message):
    monkeypatch.delenv("DAPE_DEBUG", raising=False)
    failing(monkeypatch, error)
    assert main(["list"]) == code
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("dape: ") and message in shown.err


HOW_TO_CONTINUE = {
    "compare --out new": "interrupted; no run has begun; the same command begins again",
    "compare --out begun": "interrupted; continue with: dape compare --resume --out begun",
    "train --out new": "interrupted; training has not begun; the same command begins again",
    "train --out begun": "interrupted; continue from the last checkpoint with: dape train --resume --out begun",
    "probe --train": "interrupted; the same command continues",
    "probe run": "interrupted\n",
    **{
        line: "interrupted; the same command continues"
        for line in ("che", "extend model", "study adapters", "reproduce x")
    },
}


@pytest.mark.parametrize("line", HOW_TO_CONTINUE)
def test_an_interruption_at_any_moment_says_how_to_continue(capsys, monkeypatch, tmp_path, line):
    """Also before the first run or step: reading text and importing torch take a while."""

    def run(config: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    Path("begun").mkdir()
    for name in ("compare.yaml", "config.yaml"):
        Path("begun", name).touch()
    monkeypatch.setattr(app, "COMMANDS", [dataclasses.replace(command, run=run) for command in commands.COMMANDS])
    assert main(line.split()) == 130
    assert f"dape: {HOW_TO_CONTINUE[line]}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    ["vectors dape-kerple", "che --show even_pairs", "reproduce list", "list --all", "list kerple", "bench --help"],
)
def test_80_columns_are_enough(capsys, monkeypatch, line):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(line.split()) == 0
    assert max(len(each.rstrip()) for each in capsys.readouterr().out.splitlines()) <= 80


def test_flags_that_contradict_each_other(capsys):
    assert main(["vectors", "kerple", "--check"]) == 2
    assert "ENCODING, --out and --check are for different things" in capsys.readouterr().err


def test_a_mistyped_command_of_runs_is_no_folder(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["runs", "lst"]) == 2
    assert "Did you mean `dape runs list`?" in capsys.readouterr().err
    Path("lst").mkdir()
    assert main(["runs", "lst"]) == 0


def test_debug_shows_the_traceback(monkeypatch):
    failing(monkeypatch, ValueError("5 heads"))
    monkeypatch.setenv("DAPE_DEBUG", "1")
    with pytest.raises(ValueError, match="5 heads"):
        main(["list"])


def test_our_own_mistakes_are_not_hidden(monkeypatch):
    failing(monkeypatch, AssertionError("a bug"))
    with pytest.raises(AssertionError):
        main(["list"])


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
@pytest.mark.parametrize("argv", ["list", "list --json", "--help"])
def test_closed_pipe_is_silent(argv):
    """As in `dape list | head -0`: the reader is gone before anything is written."""
    read, write = os.pipe()
    os.close(read)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "dape", *argv.split()]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, env=buffered)
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize(
    ("command", "flags"),
    [("che", ["--budget 1e-3", "by --jobs."]), ("harness", ["With --text: scored"]), ("reproduce", [])],
)
def test_help_names_flags_and_not_arguments(command, flags, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert app.main([command, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(flag in shown for flag in flags)
    own = {name for c in app.COMMANDS if c.name == command for name, word in _arguments(c.config) if word[0] == "-"}
    assert not own & set(re.findall("`([a-z_]+)`", shown))
