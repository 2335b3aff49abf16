"""``dape reproduce``: from an experiment's name to verdicts, and the page about them."""

import json
from pathlib import Path

import pytest
import yaml
from tests.texts import random_words
from tests.thinned import few

from dape.actions import reproduce_time
from dape.cli import main
from dape.experiments import worker
from dape.experiments.reproduce import scales
from dape.experiments.reproduce.catalogue import EXPERIMENTS
from dape.results.records import read_rows


@pytest.fixture(autouse=True)
def elsewhere(isolated, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "words.txt").write_text(random_words(3000))


def reproduce(*argv: str, expect: int = 0) -> None:
    assert main(["reproduce", *argv]) == expect


def ablation(*argv: str, expect: int = 0) -> None:
    reproduce("bias-ablation", "--data", "words.txt", "--out", "out", *argv, expect=expect)


def test_a_budget_is_kept_by_the_folder(here, capsys, monkeypatch):
    monkeypatch.setattr("dape.experiments.reproduce.budget.START_SECONDS", 0.0)
    ablation("--seeds", "3", "--budget", "1")
    told = capsys.readouterr().out
    assert "budget: 1 hour; nothing has to be cut" in told and len(here) == 9
    saved = yaml.safe_load(Path("out/reproduce.yaml").read_text())
    assert saved["budget"] == {"hours": 1.0, "seeds": 3, "steps": 4}
    monkeypatch.setattr(
        "dape.experiments.reproduce.budget.speeds_of", lambda *args, **kwargs: pytest.fail("timed again")
    )
    ablation("--seeds", "3", "--budget", "1")
    assert "planned before: 3 seeds of 4 steps" in capsys.readouterr().out and len(here) == 9
    ablation("--budget", "2", expect=2)
    assert "was planned for --budget 1, now 2" in capsys.readouterr().err


# End to end ----------------------------------------------------------------------------------------------------------


def test_an_experiment_and_its_report(capsys):
    """In processes of their own, as a user has it."""
    reproduce("bias-ablation", "--scale", "smoke", "--data", "words.txt", "--out", "out")
    told = capsys.readouterr().out
    assert "Table 5" in told and "f(QK, B) below f(B)" in told and "reduced: lengths divided by 16" in told
    rows = read_rows(Path("out/results.jsonl"))
    assert {row.label for row in rows} == {"kerple", "dape-kerple (bias_only)", "dape-kerple (concat_residual)"}
    assert {row.length for row in rows} == {32, 64, 128, 256, 512} and {row.train_length for row in rows} == {32}
    claims = json.loads(Path("out/claims.json").read_text())
    assert [claim["id"] for claim in claims] == ["bias-ablation/scores", "bias-ablation/bias"]
    assert all(claim["paper"]["verdict"] == "holds (not significant)" for claim in claims)
    assert all("no test possible" in claim["ours"]["detail"] for claim in claims)
    tables = Path("out/tables.md").read_text()
    assert "| dape-kerple (concat_residual) | 19.22 | 18.22 | 17.15 | 17.63 | 17.88 |" in tables
    assert "verdicts say nothing" in Path("out/claims.md").read_text()
    assert Path("out/curves.png").stat().st_size > 10_000
    pytest.importorskip("vl_convert")
    assert main(["report", "out", "--out", "report.html"]) == 0
    page = Path("report.html").read_text()
    assert "f(QK, B) below f(B)" in page and "dape-kerple (bias_only)" in page and "39.31" in page


def test_what_is_finished_is_not_done_again(here, capsys):
    ablation()
    assert len(here) == 3
    before = Path("out/results.jsonl").read_text()
    ablation("--resume")
    assert len(here) == 3 and Path("out/results.jsonl").read_text() == before
    assert "3 of them already finished" in capsys.readouterr().out
    ablation("--seeds", "2")
    assert len(here) == 6 and Path("out/results.jsonl").read_text().startswith(before)
    assert "n = 2" in Path("out/claims.md").read_text()


def test_runs_of_another_experiment_are_taken_over(here, capsys):
    ablation()
    ours = ["--data", "words.txt", "--reuse", "out", "--out"]
    reproduce("variants", *ours, "variants")
    assert "2 taken over" in capsys.readouterr().out
    assert len(here) == 3 + 6
    taken = [row for row in read_rows(Path("variants/results.jsonl")) if "reused_from" in row.extra]
    assert {row.label for row in taken} == {"kerple", "dape-kerple (concat_residual)"}


def test_one_failure_does_not_stop_the_rest(here, monkeypatch, capsys):
    real = worker.main

    def sometimes(folder: Path) -> int:
        if "bias_only" in folder.name:
            raise ValueError("no such luck")
        return real(folder)

    monkeypatch.setattr(worker, "main", sometimes)
    ablation(expect=1)
    said = capsys.readouterr()
    assert "bias_only-125m-train512-seed0" in said.err and "no such luck" in said.err
    assert {row.label for row in read_rows(Path("out/results.jsonl"))} == {"kerple", "dape-kerple (concat_residual)"}
    claims = json.loads(Path("out/claims.json").read_text())
    assert [claim["ours"]["verdict"] for claim in claims] == ["not tested"] * 2
    monkeypatch.setattr(worker, "main", real)
    ablation()
    assert here[-1].startswith("dape-kerple-bias_only") and len(here) == 4


@pytest.mark.slow
def test_bias_maps(here, monkeypatch, capsys):
    monkeypatch.setattr("dape.actions.reproduce.MAP_LENGTHS", (512, 1024))
    reproduce("bias-maps", "--data", "words.txt", "--out", "maps")
    assert len(here) == 1
    facts = json.loads(Path("maps/maps-64/maps.json").read_text())
    assert facts["length"] == 64 and len(facts["samples"]) == 2 and len(facts["heads_summary"]) == 2 * 4
    claims = {claim["id"]: claim for claim in json.loads(Path("maps/claims.json").read_text())}
    found = claims["bias-maps/input"]["ours"]["detail"]
    depending = sum(head["input_dependence"] > 0.01 for head in facts["heads_summary"])
    assert f"samples: {depending} depending on the input, {8 - depending} depending on position" in found
    assert claims["bias-maps/input"]["paper"]["verdict"] == "not tested"


def test_time_cost(monkeypatch, capsys):
    less = {"sizes": ("tiny",), "rounds": 1, "passes": ("step",), "lengths": (16,)}
    monkeypatch.setitem(reproduce_time.SETTINGS, "smoke", less)
    reproduce("time-cost", "--out", "time")
    rows = read_rows(Path("time/results.jsonl"))
    assert {row.method for row in rows} == {"rope", "t5", "alibi", "kerple", "fire", "dape-kerple"}
    claims = json.loads(Path("time/claims.json").read_text())
    assert [claim["ours"]["verdict"] for claim in claims] == ["not tested", "not tested"]
    assert "1.181 (350m), 1.141 (2.7b), 1.084 (6.7b)" in claims[0]["paper"]["detail"]
    before = Path("time/results.jsonl").read_text()
    reproduce("time-cost", "--out", "time")
    assert "measured already" in capsys.readouterr().out and Path("time/results.jsonl").read_text() == before


# Without running -----------------------------------------------------------------------------------------------------


def test_the_list(capsys):
    reproduce("list")
    told = capsys.readouterr().out
    assert all(id in told for id in EXPERIMENTS) and all(f"--scale {name}" in told for name in scales.SCALES)


@pytest.mark.parametrize("id", few(3, EXPERIMENTS))
def test_a_dry_run_creates_nothing(id, capsys):
    before = sorted(Path().iterdir())
    reproduce(id, "--scale", "paper", "--dry-run")
    told = capsys.readouterr().out
    assert "GPU-hours" in told and "memory" in told and "operations" in told
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("sedes", "Did you mean 'seeds'? There are: baselines"),
        ("seeds --seeds 0", "--seeds must be at least 1, got 0"),
        ("seeds --jobs 0", "--jobs must be at least 1, got 0"),
        ("seeds --scale gpu", "--scale gpu needs --data: the paper used Arxiv"),
        ("seeds --resume", "there is nothing to continue"),
        ("seeds --reuse nothing", "--reuse nothing: holds no reproduction"),
        ("bias-ablation --budget 0 --data words.txt", "--budget must be a number of hours above 0"),
        ("bias-ablation --budget 1 --tokens 99 --data words.txt", "omit --tokens"),
        ("bias-ablation --tokens -5 --data words.txt", "--tokens must be at least 1"),
        ("bias-ablation --scale paper --tokens 5 --data words.txt", "takes its steps from the paper"),
        ("che --size 350m", "--size is for experiments that train language models"),
        ("seeds --data missing.txt", "missing.txt"),
        ("time-cost --seeds 2", "--seeds: times are measured one after the other"),
    ],
)
def test_wrong_arguments(argv, words, capsys):
    reproduce(*argv.split(), expect=2)
    assert words in capsys.readouterr().err


def test_a_folder_of_another_experiment(here, capsys):
    ablation()
    before = Path("out/results.jsonl").read_text()
    reproduce("seeds", "--data", "words.txt", "--out", "out", expect=2)
    assert "holds another experiment: bias-ablation at scale smoke, not seeds" in capsys.readouterr().err
    reproduce("bias-ablation", "--scale", "cpu", "--out", "out", expect=2)
    assert "not bias-ablation at scale cpu" in capsys.readouterr().err
    reproduce("che", "--out", "out", expect=2)
    assert "holds another experiment" in capsys.readouterr().err
    assert Path("out/results.jsonl").read_text() == before
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("mine")
    reproduce("seeds", "--data", "words.txt", "--out", "mine", expect=2)
    assert "the folder is not empty and holds no reproduction" in capsys.readouterr().err


def test_a_line_cut_off_is_done_without(here, capsys):
    ablation()
    path = Path("out/results.jsonl")
    whole = path.read_text()
    path.write_text(whole + '{"run": "half')
    ablation()
    assert path.read_text().startswith(whole) and len(here) == 3
    assert yaml.safe_load(Path("out/reproduce.yaml").read_text())["experiment"] == "bias-ablation"
