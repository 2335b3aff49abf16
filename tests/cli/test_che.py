"""``dape che``: from the command line to the table; what it says when that is impossible."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dape.cli import main
from dape.results.records import read_rows
from dape.tasks.chomsky.catalogue import TASKS

ONE_CORE = ["--jobs", "1", "--threads", "1"]
SMALL = ["--layers", "1", "--width", "16", "--heads", "2", "--hidden", "4", "--batch", "4", *ONE_CORE]
TINY = [*SMALL, "--pool", "128", "--samples", "4"]
SHORT = ["--steps", "3", "--lengths", "3", "40", "41", "45"]


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("DAPE_DEBUG", raising=False)


def test_runs_tables_and_going_on(here, tmp_path, capsys):
    """One of two rates fails, which stops nothing; the second command adds a method and repeats nothing."""
    command = ["che", "--tasks", "even", "--seeds", "1", *SHORT, *TINY, "--out", str(tmp_path / "che")]
    assert main([*command, "--methods", "randomized-rope", "--lr", "1e-3,1e38"]) == 1
    shown = capsys.readouterr()
    assert "lr1e+38-seed0 failed" in shown.err and "Try a lower --lr" in shown.err and "Traceback" not in shown.err
    assert "99.98" in shown.out and "(scale custom)" in shown.out  # the paper's number, and ours is not its scale
    finished = tmp_path / "che/runs/even_pairs-randomized-rope-lr0.001-seed0/rows.jsonl"
    before = finished.stat().st_mtime_ns

    assert main([*command, "--methods", "randomized-rope,dape-alibi", "--lr", "1e-3"]) == 0
    shown = capsys.readouterr()
    assert "2 runs, 1 of them already finished" in shown.out and finished.stat().st_mtime_ns == before
    rows = read_rows(tmp_path / "che/results.jsonl")
    assert {row.method for row in rows} == {"randomized-rope", "dape-alibi"}
    assert all(row.extra["scale"] == "custom" and row.extra["width"] == 16 and row.step == 3 for row in rows)
    table = (tmp_path / "che/table.md").read_text()
    assert "| even_pairs | dape-alibi | 0.001 |" in table and "3 training steps instead of 200000" in table
    for name in ("lengths.png", "lengths.svg", "scores.png", "scores.svg"):
        assert (tmp_path / "che" / name).stat().st_size > 1000

    assert main([*command, "--methods", "alibi", "--steps", "4"]) == 2
    assert "steps was 3, now 4" in capsys.readouterr().err


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.slow
def test_budget_from_beginning_to_end_and_again(tmp_path, capsys):
    command = ["che", "--budget", "0.5", "--tasks", "even_pairs", "--methods", "alibi", "--out", str(tmp_path), *SMALL]
    begin = children_seconds()
    assert main(command) == 0
    assert children_seconds() - begin < 60  # of one processor: the half minute, and what starting takes
    first = capsys.readouterr().out
    assert "reduced: 1 seed instead of at least 3" in first and "test lengths instead of 460" in first
    assert main(command) == 0
    assert "1 of them already finished" in capsys.readouterr().out


@pytest.mark.slow
def test_interrupted_command_goes_on(tmp_path):
    command = [
        sys.executable,
        "-m",
        "dape",
        "che",
        "--tasks",
        "even",
        "--methods",
        "alibi",
        "--seeds",
        "1",
        "--lr",
        "1e-3",
    ]
    command += ["--steps", "3000", "--lengths", "3", "41", *TINY, "--out", str(tmp_path)]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, stdout=subprocess.DEVNULL)
    metrics = tmp_path / "runs/even_pairs-alibi-lr0.001-seed0/metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 3:
        time.sleep(0.1)
    os.kill(child.pid, signal.SIGINT)
    _, words = child.communicate(timeout=60)
    assert child.returncode == 130 and "keeps finished work" in words and "Traceback" not in words
    assert list(metrics.parent.glob("checkpoints/step-*"))
    assert subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.parametrize("name", TASKS)
def test_examples_a_person_can_read(capsys, name):
    assert main(["che", "--show", name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(name) and sum(" -> " in line for line in lines) == 6


def test_shown_examples_are_right(capsys):
    assert main(["che", "--show", "reverse"]) == 0
    examples = [line.split(":")[1].split("->") for line in capsys.readouterr().out.splitlines() if "->" in line]
    assert examples and all(question.split() == answer.split()[::-1] for question, answer in examples)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--tasks evne_pairs", "Did you mean even_pairs?"),
        ("--tasks modular", "modular_arithmetic or modular_arithmetic_brackets"),
        ("--tasks ,", "--tasks needs at least one"),
        ("--show sorting", "'sorting' is not a task"),
        ("--methods randomized-alibbi", "Did you mean 'alibi'?"),
        ("--methods cope", "causal mask only"),
        ("--budget -3", "positive number of minutes, got -3"),
        ("--budget nan", "positive number of minutes"),
        ("--budget 5 --steps 10", "--budget sets --steps"),
        ("--lengths 0 50", "a length is at least 1, got 0"),
        ("--lengths 10 20", "from 41 on"),
        (
            "--lengths 30 700 --tasks duplicate --methods randomized-rope",
            "duplicate_string at length 700 has 2100 tokens",
        ),
        ("--lengths 30 700 --tasks duplicate --methods learned", "--lengths up to 682, or --pool 2100"),
        ("--lr fast", "'fast'"),
        ("--lr 0", "--lr must be positive"),
        ("--lr ,", "at least one learning rate"),
        ("--seeds 0", "--seeds must be at least 1"),
        ("--steps 0", "--steps must be at least 1"),
        ("--stride 0", "--stride must be at least 1"),
        ("--width 20", "--width 20 cannot be divided into --heads 8"),
        ("--width 40 --methods rope", "head_dim must be even, got 5 (--width 40 --heads 8"),
        ("--device warp", "--device warp"),
        ("--out /dev/null/x", "--out /dev/null/x"),
    ],
)
def test_wrong_input(capsys, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert main(["che", *arguments.split()]) == 2
    shown = capsys.readouterr()
    assert words in shown.err and "Traceback" not in shown.err and shown.out == ""
    assert not Path("runs").exists()
