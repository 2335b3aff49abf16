"""``dape probe``: tables, rows, figures; training that goes on where it was; what it says when that is impossible."""

import json
from pathlib import Path

import pytest
from tests.texts import random_words

from dape.cli import app, main, probe
from dape.cli.commands import COMMANDS, Command
from dape.experiments import executor
from dape.results.records import read_rows
from dape.tasks.recall.config import RecallConfig

TINY = ["--layers", "1", "--width", "16", "--heads", "2"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A folder with a text, and two runs on it."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "words.txt").write_text(random_words(400))
    train = [
        "train",
        "--data",
        str(folder / "words.txt"),
        *TINY,
        "--train-length",
        "32",
        "--batch",
        "2",
        "--steps",
        "4",
    ]
    assert main([*train, "--encoding", "rope", "--seed", "7", "--out", str(folder / "rope")]) == 0
    learned = ["--encoding", "learned", "--encoding-options", "max_positions=64"]
    assert main([*train, *learned, "--out", str(folder / "learned")]) == 0
    return folder


@pytest.fixture(autouse=True)
def elsewhere(runs, isolated, monkeypatch):
    if not any(command.name == "probe" for command in COMMANDS):
        command = Command("probe", probe.Probe, probe.run, examples={})
        monkeypatch.setattr(app, "COMMANDS", [*COMMANDS, command])
    monkeypatch.chdir(runs)
    monkeypatch.setenv("COLUMNS", "200")


def run(*argv: str, expect: int = 0) -> None:
    assert main(["probe", *map(str, argv), "--threads", "1"]) == expect


SHORT = ["--lengths", "64", "96", "--depths", "0", "1", "--samples", "3", "--pairs", "2"]


# Questions to a language model ---------------------------------------------------------------------------------------


def test_table_rows_and_figures(capsys, tmp_path):
    path = tmp_path / "rows.jsonl"
    run("rope", *SHORT, "--json", path, "--figure", tmp_path / "map.png")
    shown = capsys.readouterr().out
    rows = read_rows(path)
    assert len(rows) == 2 * 2 * 2 * 4
    assert {row.protocol for row in rows} == {"recall", "passkey"}
    assert {row.metric for row in rows} == {"accuracy", "exact", "first_token", "gain_nats"}
    for row in rows:
        assert (row.run, row.method, row.seed, row.train_length, row.step) == ("rope", "rope", 7, 32, 4)
        assert row.length in (64, 96) and row.extra["depth"] in (0, 1) and row.windows == 3
        assert row.extra["filler"] == "held-out text of words" and "torch" in row.extra
        answer = 5 if row.protocol == "passkey" else 4
        assert row.scored_tokens == (3 if row.metric in ("exact", "first_token") else 3 * answer)
    for name in ("map-recall.png", "map-recall.svg", "map-passkey.png", "map-passkey.svg"):
        assert (tmp_path / name).stat().st_size > 1000 and name in shown
    assert f"appended 32 rows to {path}" in shown
    cell = next(
        r for r in rows if (r.protocol, r.metric, r.length, r.extra["depth"]) == ("passkey", "gain_nats", 96, 1)
    )
    assert f"{cell.value:+.2f}" in next(
        line for line in shown.split("passkey:")[1].splitlines() if line.startswith("    96")
    )


def test_one_task_and_the_same_numbers_again(tmp_path):
    for name in ("a", "b"):
        run("rope", *SHORT, "--tasks", "passkey", "--json", tmp_path / name, "--figure", tmp_path / "only")
    first, second = ([row.value for row in read_rows(tmp_path / name)] for name in "ab")
    assert len(first) == 16 and first == second
    assert (tmp_path / "only.png").is_file() and (tmp_path / "only.svg").is_file()


def test_default_lengths_are_those_that_are_possible(capsys):
    """32 is too short for what must be said, and there is not text enough for 512."""
    run("rope", "--tasks", "passkey", "--samples", "2", "--depths", "0.5")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines if line and line[0].isdigit()] == ["64", "128", "256"]
    run("rope", "--tasks", "passkey", "--lengths", "512", expect=2)
    assert "too few to fill length 512" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "CHECKPOINT is missing: name a run or checkpoint, or use --train"),
        (["nowhere"], "nowhere: there is no such checkpoint or run"),
        (["rope", "--train"], "--train makes its own models"),
        (["rope", "--steps", "5"], "--steps is for --train"),
        (["rope", "--lengths", "64", "30", "--tasks", "passkey"], "use --lengths of at least 47"),
        (["rope", "--lengths", "64", "--pairs", "5"], "length 64 is too short for the task recall"),
        (["rope", "--lengths", "99999"], "too few to fill length 99999"),
        (["rope", "--depths", "1.01"], "--depths must lie between 0 (the beginning) and 1 (the end), got 1.01"),
        (["rope", "--samples", "0"], "--samples must be at least 1, got 0"),
        (["rope", "--json", "nowhere/rows.jsonl"], "nowhere does not exist"),
        (["rope", "--figure", "nowhere/map"], "nowhere does not exist"),
        (["learned", "--lengths", "128"], "cannot be evaluated at length 128"),
    ],
)
def test_wrong_questions(capsys, argv, words):
    run(*argv, expect=2)
    shown = capsys.readouterr()
    assert words in shown.err and "Traceback" not in shown.err and shown.out == ""


# Small models --------------------------------------------------------------------------------------------------------

FEW = ["--train", *TINY, "--train-length", "20", "--lengths", "20", "40", "--pairs", "4", "--test-pairs", "2", "8"]
FEW += ["--depths", "0", "1", "--samples", "4", "--steps", "3", "--batch", "2"]


@pytest.fixture(scope="module")
def trained(runs, tmp_path_factory) -> Path:
    """Two methods, trained for three steps in processes of their own."""
    out = tmp_path_factory.mktemp("probe") / "out"
    config = probe.Probe(
        train=True,
        methods=("rope", "dape-kerple"),
        out=out,
        train_length=20,
        lengths=(20, 40),
        pairs=4,
        test_pairs=(2, 8),
        depths=(0.0, 1.0),
        samples=4,
        steps=3,
        batch=2,
        layers=1,
        width=16,
        heads=2,
        threads=1,
        device="cpu",
    )
    assert probe.run(config) == 0
    return out


def test_results_of_training(trained):
    rows = read_rows(trained / "results.jsonl")
    assert {row.method for row in rows} == {"rope", "dape-kerple"}
    places = [(row.length, row.extra.get("depth"), row.extra.get("pairs")) for row in rows if row.method == "rope"]
    expected = [(n, d, None) for n in (20, 40) for d in (None, 0.0, 1.0)]
    expected += [(20, None, 2), (40, None, 2), (40, None, 8)]
    assert sorted(places, key=str) == sorted(expected, key=str)
    for name in ("depth.png", "depth.svg", "pairs.png", "pairs.svg"):
        assert (trained / name).stat().st_size > 1000
    assert "| dape-kerple |" in (trained / "table.md").read_text()


def test_finished_runs_are_not_done_again(trained, capsys, monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("a child was started")

    monkeypatch.setattr(executor, "start", refuse)
    before = (trained / "results.jsonl").read_bytes()
    run(*FEW, "--methods", "rope", "dape-kerple", "--out", trained)
    assert (trained / "results.jsonl").read_bytes() == before
    shown = capsys.readouterr().out
    assert "2 runs, 2 of them already finished" in shown and "rope-seed0 has not learned the task" in shown


def test_methods_are_added(trained, monkeypatch, capsys):
    started = []
    monkeypatch.setattr(executor, "start", lambda task: started.append(task.name) or Finished(1))
    run(*FEW, "--methods", "rope", "alibi", "--out", trained, expect=1)
    assert started == ["alibi-seed0"]
    job = json.loads((trained / "runs/alibi-seed0/job.json").read_text())
    assert job["method"] == "alibi" and job["config"]["steps"] == 3
    assert "alibi-seed0 failed, exit code 1" in capsys.readouterr().err


class Finished:
    """A child that has ended at once."""

    def __init__(self, returncode: int) -> None:
        self.returncode = returncode

    def poll(self) -> int:
        return self.returncode


def test_ctrl_c_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(executor.Local, "run", interrupted)
    run(*FEW, "--methods", "rope", "--out", tmp_path / "out", expect=130)
    assert "give the same settings again to continue" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--methods", "roep"], "Did you mean 'rope'?"),
        (["--methods"], "--methods needs a value"),
        (["--methods", "rope", "learned", "--lengths", "64", "4096"], "learned cannot be evaluated at length 4096"),
        (["--heads", "3"], "--width 64 cannot be divided into --heads 3"),
        (["--lengths", "30"], "length 30 is too short for 8 pairs"),
        (["--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["--json", "rows.jsonl"], "--json is for a CHECKPOINT"),
        (["--out", "words.txt"], "is a file, not a folder"),
        (["--out", "."], "the folder is not empty and holds no probe"),
    ],
)
def test_wrong_training(capsys, argv, words):
    run("--train", *argv, expect=2)
    shown = capsys.readouterr()
    assert words in shown.err and "Traceback" not in shown.err and shown.out == ""
    assert not Path("runs").exists()


def test_other_settings_are_refused(trained, capsys):
    run(*FEW, "--methods", "rope", "--lr", "0.5", "--out", trained, expect=2)
    assert f"lr was {RecallConfig.lr}, now 0.5" in capsys.readouterr().err
