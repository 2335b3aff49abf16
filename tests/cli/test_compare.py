"""``dape compare``: from a text to a table. Runs happen in this process unless a test is about processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tests.texts import random_words

from dape.cli import main
from dape.experiments import worker
from dape.experiments.executor import WORKER, Local
from dape.files import locked
from dape.machine import usable_cores
from dape.results.records import read_rows
from dape.tasks.text import TextTask
from dape.training.description import find
from dape.training.run import read_metrics
from dape.training.trainer import Trainer

SIZES = ["--layers", "1", "--width", "16", "--heads", "2", "--train-length", "8", "--batch", "2"]
SMALL = [*SIZES, "--steps", "4", "--log-every", "1", "--lengths", "8", "16", "--last-k", "4", "--windows", "5"]
FILES = ["compare.yaml", "curves.png", "curves.svg", "results.jsonl", "summary.md", "table.md"]


@pytest.fixture(autouse=True)
def elsewhere(isolated, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "words.txt").write_text(random_words(150))


@pytest.fixture
def begun(here, monkeypatch) -> list[str]:
    """Names of runs in this process, without figures, which take half a second."""
    monkeypatch.setattr("dape.report.figures.perplexity_figure", lambda *args, **kwargs: None)
    monkeypatch.setattr("dape.report.figures.save_figure", lambda *args, **kwargs: None)
    return here


def compare(*argv: str, methods: str = "rope dape-kerple", seeds: int = 2, expect: int = 0) -> None:
    grid = ["--methods", *methods.split(), "--seeds", str(seeds), "--jobs", str(usable_cores())]  # one thread each
    assert main(["compare", "--data", "words.txt", "--out", "out", *SMALL, *grid, *argv]) == expect


def weights(run: str) -> dict[str, torch.Tensor]:
    return load_file(find(Path("out/runs") / run) / "model.safetensors")


# From beginning to end -----------------------------------------------------------------------------------------------


def test_files_table_and_rows(here, capsys):
    compare()
    shown = capsys.readouterr()
    assert sorted(p.name for p in Path("out").iterdir() if p.is_file() and p.name != ".lock") == FILES
    assert here == ["dape-kerple-seed0", "rope-seed0", "dape-kerple-seed1", "rope-seed1"]
    rows = read_rows(Path("out/results.jsonl"))
    assert [(row.run, row.length) for row in rows] == [(run, length) for run in here for length in (8, 16)]
    for row in rows:
        assert (row.protocol, row.k, row.windows, row.mode, row.scored_tokens) == ("last_k", 4, 5, "packed", 20)
        assert (row.train_length, row.step, len(row.window_nll)) == (
            8,
            4,
            5,
        ) and row.run == f"{row.method}-seed{row.seed}"
        assert row.data_hash == json.loads(Path("out/data/manifest.json").read_text())["hash"]
        assert row.extra["data"] == "words" and row.extra["device"] == "cpu" and row.extra["torch"]
        assert row.extra["train_tokens"] == 4 * 2 * 8 and row.extra["step_ms"] > 0
    sizes = {run: sum(x.numel() for x in weights(run).values()) for run in here}
    added = {row.method: row.extra["encoding_parameters"] for row in rows}
    assert added["rope"] == 0 and added["dape-kerple"] == sizes["dape-kerple-seed0"] - sizes["rope-seed0"] > 0
    assert "2 encodings x 2 seeds = 4 runs" in shown.out and "4 steps of 2 x 8 tokens of words" in shown.out
    assert "the last 4 of 8, 16 tokens, 5 windows, packed" in shown.out
    for name in ("table.md", "summary.md"):
        text = Path("out", name).read_text()
        assert "dape-kerple" in text and "rope" in text
    assert Path("out/summary.md").read_text().strip() in shown.out
    assert "wrote results.jsonl, table.md, summary.md, curves.png, curves.svg in out" in shown.out
    assert Path("out/curves.png").read_bytes().startswith(b"\x89PNG") and "<svg" in Path("out/curves.svg").read_text()


def test_what_is_finished_is_not_done_again(begun, capsys):
    compare(methods="rope", seeds=1)
    rows, begun[:] = Path("out/results.jsonl").read_text(), []
    capsys.readouterr()
    compare(methods="rope", seeds=1)
    assert begun == [] and Path("out/results.jsonl").read_text() == rows
    assert "1 run, 1 of them already finished" in capsys.readouterr().out
    compare(methods="rope kerple", seeds=1)
    assert begun == ["kerple-seed0"]
    compare(methods="rope", seeds=2)
    assert begun == ["kerple-seed0", "rope-seed1"]
    assert {row.run for row in read_rows(Path("out/results.jsonl"))} == {"rope-seed0", "kerple-seed0", "rope-seed1"}
    assert "kerple" not in Path("out/table.md").read_text()  # the table is of what was asked for
    assert (
        main(["compare", "--resume", "--out", "out", "--jobs", str(usable_cores())]) == 0
    )  # everything that was ever asked for
    assert begun[2:] == ["kerple-seed1"]
    assert "kerple" in Path("out/table.md").read_text()


def test_a_folder_from_before_windows_had_a_reach_goes_on(begun):
    """Its windows end where the greatest length has room, and its rows do not say so."""
    compare("--reach", "16", methods="rope", seeds=1)
    saved = yaml.safe_load(Path("out/compare.yaml").read_text())
    assert "reach" not in saved["shared"]["evaluation"]
    rows = Path("out/results.jsonl").read_text()
    Path("out/results.jsonl").write_text(rows.replace('"reach": 16, ', ""))
    compare(methods="rope kerple", seeds=1)
    reaches = {row.run: row.reach for row in read_rows(Path("out/results.jsonl"))}
    assert reaches == {"rope-seed0": None, "kerple-seed0": 16}
    table = Path("out/table.md").read_text()
    assert "left out" not in table and all(name in table for name in ("rope", "kerple"))


def test_another_reach_is_another_comparison(begun, capsys):
    compare(methods="rope", seeds=1)
    compare("--reach", "20", methods="rope", seeds=1, expect=2)
    assert "reach was 64, now 20" in capsys.readouterr().err


def test_the_same_as_training_and_evaluating_by_hand(begun, tmp_path):
    compare(methods="rope", seeds=2)
    argv = ["--data", "words.txt", "--encoding", "rope", "--seed", "1", *SIZES, "--steps", "4", "--threads", "1"]
    assert main(["train", *argv, "--out", "hand"]) == 0
    by_hand = load_file(find(Path("hand")) / "model.safetensors")
    assert all(torch.equal(by_hand[name], weight) for name, weight in weights("rope-seed1").items())
    evaluate = ["--lengths", "8", "16", "--last-k", "4", "--windows", "5", "--threads", "1", "--json", "rows.jsonl"]
    assert main(["eval", "hand", *evaluate]) == 0
    swept = [row for row in read_rows(Path("out/results.jsonl")) if row.seed == 1]
    assert [row.value for row in read_rows(Path("rows.jsonl"))] == [row.value for row in swept]


def test_a_run_that_was_cut_off_goes_on(begun, monkeypatch, capsys):
    compare(methods="rope", seeds=1)
    whole = weights("rope-seed0")
    Path("out").rename("whole")
    real = Trainer.take_step
    with monkeypatch.context() as patch:

        def die(self):
            if self.step == 3:
                raise RuntimeError("as if killed")
            return real(self)

        patch.setattr(Trainer, "take_step", die)
        compare("--save-every", "1", methods="rope", seeds=1, expect=1)
    assert find(Path("out/runs/rope-seed0")).name == "step-00000003"
    shown = capsys.readouterr()
    assert "rope-seed0 failed" in shown.err and "as if killed" in shown.err
    steps = []

    def count(self):
        steps.append(self.step)
        return real(self)

    monkeypatch.setattr(Trainer, "take_step", count)
    compare(methods="rope", seeds=1)
    assert steps == [3]
    assert all(torch.equal(whole[name], weight) for name, weight in weights("rope-seed0").items())
    lines = [line["step"] for line in read_metrics(Path("out/runs/rope-seed0")) if "loss" in line]
    assert lines == [1, 2, 3, 4]
    assert Path("out/results.jsonl").read_text().count("\n") == 2


def test_a_run_that_was_trained_but_not_measured_is_not_trained_again(begun, monkeypatch):
    compare(methods="rope", seeds=1)
    Path("out/runs/rope-seed0/rows.jsonl").unlink()
    Path("out/results.jsonl").unlink()
    monkeypatch.setattr(Trainer, "take_step", lambda self: pytest.fail("trained again"))
    compare(methods="rope", seeds=1)
    assert len(read_rows(Path("out/results.jsonl"))) == 2


# Failures ------------------------------------------------------------------------------------------------------------


def test_one_failure_does_not_stop_the_others(begun, monkeypatch, capsys):
    real = TextTask._loss_of

    def diverge(self, model, tokens, drawn):
        return real(self, model, tokens, drawn) * (float("nan") if model.config.encoding == "rope" else 1)

    with monkeypatch.context() as patch:
        patch.setattr(TextTask, "_loss_of", diverge)
        compare(methods="rope kerple", expect=1)
    shown = capsys.readouterr()
    assert "rope-seed0 failed, exit code 1: NonFiniteLossError: step 1: the loss is nan" in shown.err
    assert "rope-seed1 failed" in shown.err and "kerple-seed1" in shown.err
    assert {row.method for row in read_rows(Path("out/results.jsonl"))} == {"kerple"}
    assert "kerple" in Path("out/table.md").read_text() and "kerple" in shown.out
    begun.clear()
    compare(methods="rope kerple")
    assert begun == ["rope-seed0", "rope-seed1"]


def test_nothing_but_failures(begun, monkeypatch, capsys):
    monkeypatch.setattr(Trainer, "take_step", lambda self: 1 / 0)
    compare(methods="rope", seeds=1, expect=1)
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert not Path("out/table.md").exists()


def test_an_interruption_says_how_to_go_on(begun, monkeypatch, capsys):
    real = Local.run

    def interrupted(self, tasks, *, tick):
        yield next(real(self, tasks, tick=tick))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Local, "run", interrupted)
        compare(methods="rope kerple", seeds=1, expect=130)
    assert "continue with: dape compare --resume --out out" in capsys.readouterr().err
    assert begun == ["rope-seed0"]
    assert main(["compare", "--resume", "--out", "out", "--jobs", str(usable_cores())]) == 0
    assert begun == ["rope-seed0", "kerple-seed0"]
    assert len(read_rows(Path("out/results.jsonl"))) == 4


def test_a_resumed_comparison_saves_as_often_as_before(begun):
    compare("--save-every", "1", "--keep", "9", methods="rope", seeds=1)
    assert main(["compare", "--resume", "--out", "out", "--seeds", "2", "--jobs", str(usable_cores())]) == 0
    assert len(list(Path("out/runs/rope-seed1/checkpoints").iterdir())) == 4


def test_two_at_once_in_one_folder(begun, capsys):
    with locked(Path("out")):
        compare(expect=2)
    assert "is in use by another dape process" in capsys.readouterr().err and begun == []


# Refused -------------------------------------------------------------------------------------------------------------


def test_other_settings(begun, capsys):
    compare(methods="rope", seeds=1)
    Path("other.txt").write_text("other words here\n" * 100)
    before = Path("out/results.jsonl").read_text()
    for argv, words in (
        ("--steps 5", "steps was 4, now 5"),
        ("--width 32", "width was 16, now 32"),
        ("--lengths 8 32", "lengths was [8, 16], now [8, 32]"),
        ("--windows 6", "windows was 5, now 6"),
        ("--data other.txt", "other"),
    ):
        compare(*argv.split(), methods="rope kerple", seeds=1, expect=2)
        assert words in capsys.readouterr().err
    assert begun == ["rope-seed0"] and Path("out/results.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--methods", "--methods needs a value"),
        ("--methods rope kerpel", "--methods: unknown positional encoding 'kerpel'. Did you mean 'kerple'?"),
        ("--seeds 0", "--seeds must be at least 1"),
        ("--jobs 0", "--jobs must be at least 1"),
        ("--windows 0", "--windows must be at least 1"),
        ("--train-length 0 --lengths 8", "--train-length must be at least 1"),
        ("--steps 0", "--steps must be at least 1"),
        ("--heads 3", "--heads 3"),
        ("--last-k 9", "length 8 is shorter than the 9 tokens to score"),
        ("--lengths 8 99999", "too few for evaluation length 99999"),
        ("--lengths 0", "--lengths must be positive"),
        ("--encoding rope", "use --methods"),
        ("--seed 3", "use --seeds"),
        ("--data nowhere", "nowhere: no such file"),
        ("--device meta", "--device meta: cannot be used here"),
        ("--encoding-options hiden=3", "hiden"),
        ("--encoding-options kerple.hidden=3", "kerple is not among the --methods"),
        ("--out words.txt", "words.txt is a file, not a folder"),
        ("--out .", "is not empty and holds no comparison"),
        ("--resume --out nowhere", "there is no comparison to continue"),
        ("--preset tyny", "Did you mean 'tiny'?"),
    ],
)
def test_wrong_arguments(begun, capsys, argv, words):
    given = argv.split()
    out = [] if "--out" in given else ["--out", "out"]
    methods = [] if "--methods" in given else ["--methods", "rope"]
    assert main(["compare", "--data", "words.txt", *SMALL, *out, *methods, *given]) == 2
    shown = capsys.readouterr()
    assert words in shown.err and "Traceback" not in shown.err and begun == []


def test_an_encoding_that_cannot_reach_the_longest_length_is_found_before_training(begun, capsys):
    compare("--encoding-options", "learned.max_positions=12", methods="rope learned", seeds=1, expect=2)
    assert "learned cannot be evaluated at length 16" in capsys.readouterr().err
    options = ["randomized-rope.pool=12", "learned.max_positions=16"]
    compare("--encoding-options", *options, methods="learned randomized-rope", seeds=1, expect=2)
    assert "randomized-rope cannot be evaluated at length 16" in capsys.readouterr().err
    assert begun == []


def test_options_of_one_method(begun):
    compare("--encoding-options", "dape-kerple.hidden=3", methods="rope dape-kerple", seeds=1)
    assert weights("dape-kerple-seed0")["encodings.0.f.first.weight"].shape[0] == 3
    assert main(["compare", "--out", "out", "--resume"]) == 0
    assert begun == ["dape-kerple-seed0", "rope-seed0"]


def test_the_folder_can_be_moved(begun, tmp_path, monkeypatch):
    compare(methods="rope", seeds=1)
    (tmp_path / "new place").mkdir()
    Path("out").rename("new place/moved")
    Path("words.txt").unlink()
    monkeypatch.chdir("new place")
    assert main(["compare", "--resume", "--out", "moved", "--seeds", "2", "--jobs", str(usable_cores())]) == 0
    assert begun == ["rope-seed0", "rope-seed1"] and len(read_rows(Path("moved/results.jsonl"))) == 4


def test_data_that_has_changed_under_a_run(begun, monkeypatch, capsys):
    """The worker looks again."""
    real = worker.read_job
    monkeypatch.setattr(worker, "read_job", lambda folder: replace(real(folder), data_hash="0" * 64))
    compare(methods="rope", seeds=1, expect=1)
    assert "has changed since the comparison was begun" in capsys.readouterr().err


def test_a_text_too_short_for_all_windows_is_mentioned(begun, capsys):
    compare("--windows", "1000", methods="rope", seeds=1)
    assert "room for" in capsys.readouterr().err


# Processes -----------------------------------------------------------------------------------------------------------


def workers(out: Path) -> list[int]:
    """The process ids of the runs of a comparison."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text().split("\0")
        except OSError:
            continue
        if WORKER in words and any(str(out) in word for word in words):
            found.append(int(folder.name))
    return found


def wait_for(condition: Callable[[], object], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path):
    """``dape compare`` in a process of its own, of rope and kerple with one seed, in a folder of ``tmp_path``."""
    children = []

    def run(*argv: str, out: str = "out") -> subprocess.Popen:
        words = ["compare", "--data", "words.txt", *SMALL, "--methods", "rope", "kerple", "--jobs", "2"]
        command = [sys.executable, "-m", "dape", *words, "--out", str(tmp_path / out), *argv]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        children.append((child, tmp_path / out))
        return child

    yield run
    for child, out in children:
        child.kill()
        child.communicate()
        for pid in workers(out):
            os.kill(pid, signal.SIGKILL)


def steps_of(out: Path) -> list[int]:
    """The last step of each run."""
    return [
        max((line["step"] for line in read_metrics(out / "runs" / name)), default=0)
        for name in ("rope-seed0", "kerple-seed0")
    ]


LINUX = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
STEPS = 1500
"""So many that neither run ends before the other has begun."""
MANY = ("--steps", str(STEPS), "--save-every", "100000")


@LINUX
@pytest.mark.slow
def test_interrupted_and_continued(start, tmp_path):
    """Ctrl-C in the middle of both runs; afterwards everything is as if it had not happened."""
    child = start(*MANY)
    wait_for(lambda: min(steps_of(tmp_path / "out")) > 20)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=300)
    assert child.returncode == 130, errors
    assert workers(tmp_path / "out") == []
    assert f"continue with: dape compare --resume --out {tmp_path / 'out'}" in errors and "Traceback" not in errors
    assert all(find(tmp_path / "out/runs" / name).name != f"step-{STEPS:08}" for name in ("rope-seed0", "kerple-seed0"))

    argv = ["compare", "--resume", "--out", str(tmp_path / "out"), "--jobs", "1", "--log-every", "1"]
    again = subprocess.run([sys.executable, "-m", "dape", *argv], capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    whole = start(*MANY, out="whole")
    assert whole.wait(600) == 0
    for name in ("rope-seed0", "kerple-seed0"):
        ours, theirs = (
            load_file(find(tmp_path / folder / "runs" / name) / "model.safetensors") for folder in ("out", "whole")
        )
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
        lines = [line["step"] for line in read_metrics(tmp_path / "out/runs" / name) if "loss" in line]
        assert lines == list(range(1, STEPS + 1))


@LINUX
@pytest.mark.slow
def test_a_run_that_is_killed_fails_alone(start, tmp_path):
    child = start(*MANY)
    wait_for(lambda: min(steps_of(tmp_path / "out")) > 20)
    (victim,) = (pid for pid in workers(tmp_path / "out") if "rope-seed0" in Path(f"/proc/{pid}/cmdline").read_text())
    os.kill(victim, signal.SIGKILL)
    _, errors = child.communicate(timeout=600)
    assert child.returncode == 1 and "rope-seed0 failed" in errors and "exit code -9" in errors
    assert {row.run for row in read_rows(tmp_path / "out/results.jsonl")} == {"kerple-seed0"}
    again = start(*MANY)
    out, errors = again.communicate(timeout=600)
    assert again.returncode == 0, errors
    assert "1 of them already finished" in out
    assert {row.run for row in read_rows(tmp_path / "out/results.jsonl")} == {"kerple-seed0", "rope-seed0"}


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_no_run_outlives_the_comparison(start, tmp_path, number):
    child = start("--steps", "1000000")
    wait_for(lambda: min(steps_of(tmp_path / "out")) > 20)
    assert workers(tmp_path / "out")
    child.send_signal(number)
    child.communicate(timeout=120)
    assert child.returncode in (-number, 130)
    wait_for(lambda: workers(tmp_path / "out") == [], seconds=30)
