"""Random command lines: every command, every flag, values that are right, extreme or nonsense.

Work is cut off where planning ends. A command line is answered with exit code 0 or 2 (1 if a file is not what it should
be), in words, within seconds and never with a traceback; a mistake names a flag; only what was named is created.
"""

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tyro
from hypothesis import event, given, note
from hypothesis import strategies as st

pytest.importorskip("transformers")

from tests.crash.commands import make_inputs
from tests.fuzz.cases import fuzzed

from dape.cli import main
from dape.cli.commands import COMMANDS

WORK = [
    "dape.bench.runner.Timed.carry_out",
    "dape.bench.runner.Once.carry_out",
    "dape.bench.runner.Begins.carry_out",
    "dape.experiments.chomsky_budget.time_method",
    "dape.doctor.run.examine",
    "dape.actions.extend.measured",
    "dape.actions.visualize._look",
    "dape.evaluation.mechanism.dissect",
    "dape.evaluation.perplexity.measure",
    "dape.evaluation.answers.score",
    "dape.hf.harness.run.measure",
    "dape.models.generate.generate",
    "dape.experiments.executor.Local.run",
    "dape.experiments.executors.ray.Ray.run",
    "dape.experiments.executors.slurm.Slurm.run",
    "dape.actions.train.run_processes",
    "dape.actions.evaluate.run_processes",
    "dape.training.trainer.Trainer.run",
    "dape.evaluation.effects.effect",
    "dape.conformance.compare.compare",
    "dape.actions.vectors.checked",
    "dape.actions.vectors.write_all",
    "dape.actions.live.LiveServer.serve_forever",
]
"""Where planning ends. What is not here is quick enough to be done."""

NOTHING_HERE = ("evidence", "bench compare")
"""Commands that need a ladder of runs, or a clone of the repository."""

MODEL = ["--layers", "1", "--width", "16", "--heads", "2"]
BASES: dict[str, tuple[list[str], list[str]]] = {
    "list": ([], []),
    "doctor": ([], []),
    "compare": ([], [*MODEL, "--train-length", "8", "--data", "data", "--out", "out", "--lengths", "8", "16"]),
    "prepare": (["short.txt"], ["--out", "out"]),
    "train": ([], [*MODEL, "--train-length", "8", "--data", "data", "--out", "out"]),
    "eval": (["run"], ["--data", "data", "--lengths", "8", "16", "--last-k", "8"]),
    "generate": (["run"], ["--prompt", "a"]),
    "draw": (["kerple"], ["--out", "out.png"]),
    "verify": (["dape.positional.kerple:Kerple"], ["--as", "kerple"]),
    "vectors": (["kerple"], []),
    "runs list": (["."], []),
    "runs show": (["run"], []),
    "runs compare": (["run", "run"], []),
    "runs clean": (["."], ["--dry-run"]),
    "bench compare": (["HEAD"], []),
    "checkpoint merge": (["run"], ["--out", "out"]),
    "export": (["run"], ["--out", "out"]),
    "import": (["model"], ["--out", "out"]),
    "visualize": (["run"], ["--data", "data", "--length", "16", "--out", "out"]),
    "probe": (["run"], ["--data", "data", "--lengths", "64", "--pairs", "2"]),
    "che": ([], ["--tasks", "even_pairs", "--methods", "alibi", "--out", "out"]),
    "extend": (["llama"], ["--data", "data", "--lengths", "16", "32", "--out", "out"]),
    "harness": (["model"], ["--text", "data", "--lengths", "16", "--last-k", "8"]),
    "study adapters": ([], [*MODEL, "--train-length", "8", "--reach", "4", "--data", "data", "--out", "out"]),
    "reproduce": (["bias-ablation"], ["--data", "data", "--out", "out"]),
    "report": (["results"], ["--out", "out.html"]),
    "evidence": (["results"], []),
    "mechanism": (["run"], ["--data", "data"]),
    "bench attention": ([], []),
    "bench train": ([], []),
    "bench model": ([], ["--quick"]),
    "bench decode": ([], []),
    "bench memory": ([], []),
    "bench data": ([], []),
    "bench processes": ([], []),
    "bench kernels": ([], []),
    "bench che": ([], ["--quick"]),
}
"""Positional arguments and flags with which planning succeeds."""

INTS = ["0", "1", "2", "3", "16", "-1", "30", "2147483648", "9" * 18, "9" * 20, "9" * 400, "1.5", "1e3", "0x10"]
FLOATS = ["0", "0.5", "1", "-1", "1e-3", "1e-320", "1e308", "1e400", "nan", "inf", "-inf", "-0.0", "1,5"]
PATHS = ["nowhere", "nowhere/deep", "text.txt", "text.txt/below", "data", "empty", "run", "a/../out", "ü/ö.txt"]
PATHS += ["/dev/null", "/proc/out", "x" * 300, "damaged.yaml"]
WORDS = ["", " ", "ü", "名前", "a/b", "-", "--", "-x", "None", "x" * 5000, "\n", "a=b", "%s%n", "[red]", "\udcff"]
WORDS += ["alibi", "dape-alibi", "randomized-rope", "learned", "cope", "all", "paper", "cpu", "meta", "cuda:7"]
OPTIONS = ["hidden=4", "hidden=-1", "hidden=nan", "variant=concat", "alibi.hidden=1", "=", "x", "x=[", "x={a: &b [*b]}"]
SECONDS = 10.0


class PlannedError(BaseException):
    """Planning has ended well."""


# Flags ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flag:
    name: str
    """As typed; empty for a positional argument."""
    kind: str
    """How the help calls its values, such as INT."""
    several: bool
    switch: bool

    def values(self) -> st.SearchStrategy[list[str]]:
        if self.switch:
            return st.just([])
        return st.lists(self._value(), max_size=3) if self.several else self._value().map(lambda value: [value])

    def _value(self) -> st.SearchStrategy[str]:
        fitting: list[str] = []
        if "INT" in self.kind:
            fitting = INTS
        elif "FLOAT" in self.kind:
            fitting = FLOATS
        elif "NAME=VALUE" in self.kind:
            fitting = OPTIONS
        elif "{" in self.kind:
            fitting = [word for word in self.kind.replace("[", "").strip("{}").replace("}", ",").split(",") if word]
        else:
            fitting = [*PATHS, *WORDS]
        return st.sampled_from(fitting) if fitting is WORDS else st.sampled_from(fitting) | st.sampled_from(WORDS)


def flags_of(config: type) -> list[Flag]:
    """All that its parser knows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        actions = tyro.extras.get_parser(config)._actions
    return [
        Flag(name, str(action.metavar), action.nargs in ("*", "?"), action.nargs == 0)
        for action in actions
        for name in action.option_strings or [""]
        if name != "-h"
    ]


FLAGS = {command.name: flags_of(command.config) for command in COMMANDS}
FLAGS["harness"] = [flag for flag in FLAGS["harness"] if flag.name != "--tasks"]  # lm-eval reads 10,000 files for it


@dataclass(frozen=True)
class Case:
    command: str
    positional: list[str]
    given: list[tuple[Flag, list[str]]]

    @property
    def words(self) -> list[str]:
        return [*self.positional, *(value for _, values in self.given for value in values)]

    @property
    def argv(self) -> list[str]:
        words = [word for flag, values in self.given if flag.name for word in [flag.name, *values]]
        return [*self.command.split(), *self.positional, *BASES[self.command][1], *words]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    command = draw(st.sampled_from(sorted(FLAGS)))
    chosen = draw(st.lists(st.sampled_from(FLAGS[command]), min_size=1, max_size=3))
    given = [(flag, draw(flag.values())) for flag in chosen]
    positional = next((values for flag, values in given if not flag.name), BASES[command][0])
    return Case(command, positional, given)


# The place -----------------------------------------------------------------------------------------------------------


class Sandbox:
    """A folder with something of every kind, in which a command may only create what it was told to."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.pristine = folder / "here", folder / "pristine"
        self.folder.mkdir()
        with contextlib.chdir(self.folder):
            _fill(self.folder)
        shutil.copytree(self.folder, self.pristine, symlinks=True)
        self._before = self._seen()

    def run(self, argv: Sequence[str]) -> "Answer":
        out, err = io.StringIO(), io.StringIO()
        begin, code = time.process_time(), 0
        streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
        with contextlib.chdir(self.folder), streams[0], streams[1], contextlib.suppress(PlannedError), _alarm():
            code = main(list(argv))
        seconds, created = time.process_time() - begin, self._changes()
        if created:
            shutil.rmtree(self.folder)
            shutil.copytree(self.pristine, self.folder, symlinks=True)
            self._before = self._seen()
        return Answer(code, out.getvalue(), err.getvalue(), seconds, created)

    def _seen(self) -> dict[str, int]:
        return {
            str(p.relative_to(self.folder)): p.lstat().st_mtime_ns for p in self.folder.rglob("*") if not p.is_dir()
        }

    def _changes(self) -> set[str]:
        now = self._seen()
        return {name for name in {**now, **self._before} if now.get(name) != self._before.get(name)}


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str
    seconds: float
    created: set[str]


def _fill(folder: Path) -> None:
    def dape(*argv: str) -> None:
        assert main(list(argv)) == 0, argv

    make_inputs(folder, dape)
    dape("prepare", "text.txt", "--out", "data")
    dape("export", "run", "--out", "model")
    dape("eval", "run", "--data", "data", "--lengths", "8", "--last-k", "8", "--json", "results.jsonl")
    for name in ("empty", "results", "home", "tmp"):
        (folder / name).mkdir()
    (folder / "results.jsonl").rename(folder / "results" / "results.jsonl")
    (folder / "short.txt").write_text("short and simple, " * 20)
    (folder / "damaged.yaml").write_text("model: {layers: [")


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    """What hangs would hang the tests."""

    def alarm(*_: object) -> None:
        raise AssertionError("it does not end")

    before = signal.signal(signal.SIGALRM, alarm)
    signal.alarm(120)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory) -> Iterator[Sandbox]:
    folder = tmp_path_factory.mktemp("commands")

    def planned(*_args: Any, **_options: Any) -> None:
        raise PlannedError

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DAPE_DEBUG", raising=False)
        patch.delenv("XDG_CACHE_HOME", raising=False)
        patch.setenv("DAPE_CACHE", os.environ.get("DAPE_CACHE", str(Path.home() / ".cache" / "dape")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"some text")))
        made = Sandbox(folder)
        patch.setenv("HOME", str(made.folder / "home"))
        patch.setattr(tempfile, "tempdir", str(made.folder / "tmp"))
        for name in WORK:
            patch.setattr(name, planned)
        yield made


# The properties ------------------------------------------------------------------------------------------------------


@fuzzed(0.15)
@given(case=cases())
def test_any_command_line_is_answered_in_words(sandbox, case):
    note(f"dape {' '.join(case.argv)}")
    answer = sandbox.run(case.argv)
    event(f"exit code {answer.code}")
    check(case, answer)


def check(case: Case, answer: Answer) -> None:
    said = answer.out + answer.err
    assert answer.code in (0, 1, 2), answer
    assert "Traceback" not in said and not answer.err.startswith("dape: \n(") and answer.err != "dape: \n", said
    assert answer.seconds < SECONDS
    if answer.code:
        assert answer.err.strip()
    if answer.code == 2 and "".join(case.words).strip():
        assert any(word in said for word in named(case)), said
    outside = {name for name in answer.created if not any(under(name, root) for root in named_paths(case))}
    assert not outside


def named(case: Case) -> list[str]:
    """What a message about a mistake may name: a flag of the command, or what was given (odd characters escaped)."""
    flags = [flag.name or flag.kind for flag in FLAGS[case.command] if flag.name != "-h"]
    given = [shown for value in case.words for shown in (value, repr(value)[1:-1]) if shown]
    return [*flags, *given, "is empty", "is missing", "no such folder", "what was given", "name a file", "would need"]


def named_paths(case: Case) -> list[str]:
    return ["runs", *(os.path.normpath(word) for word in [*case.words, *BASES[case.command][1]])]


def under(name: str, root: str) -> bool:
    """A figure is written with endings of its own."""
    return name == root or name.startswith((root + os.sep, root + ".", root + "-"))


# What the cases begin with -------------------------------------------------------------------------------------------


def test_planning_succeeds_without_anything_odd(sandbox):
    for command in BASES:
        answer = sandbox.run(Case(command, BASES[command][0], []).argv)
        assert answer.code == (2 if command in NOTHING_HERE else 0), (command, answer)


def test_every_command_has_a_base():
    assert set(BASES) == {command.name for command in COMMANDS}


@pytest.mark.parametrize(
    ("words", "code"),
    [([b"list", b"\xff\xfe"], 2), ([b"prepare", b"nowhere-\xff", b"--out", b"out"], 2), ([b"che", b"--show", b"x"], 2)],
)
def test_end_to_end(tmp_path, words, code):
    done = subprocess.run([sys.executable, "-m", "dape", *words], cwd=tmp_path, capture_output=True)
    assert done.returncode == code and done.stderr.strip() and b"Traceback" not in done.stderr
    assert not any(tmp_path.iterdir())
