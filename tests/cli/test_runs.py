"""``dape runs``: what is listed, shown and compared; and that nothing goes which is needed."""

import json
import os
from pathlib import Path

import pytest

from dape.cli import main
from dape.errors import UsageError
from dape.files import locked
from dape.report.terminal_curve import curve_lines

CONFIG = "model:\n  encoding: {encoding}\ntrain:\n  steps: 20\n  seed: 1\ndata: stdlib\nthreads: 1\n"
ROW = {
    "run": "x", "method": "alibi", "seed": 0, "train_length": 64, "metric": "perplexity", "scored_tokens": 10,
    "protocol": "last_k", "data_hash": "abc",
}  # fmt: skip


def make_run(folder: Path, *, encoding: str = "alibi", step: int = 20, steps: tuple[int, ...] = (10, 20)) -> Path:
    for each in steps:
        place = folder / f"checkpoints/step-{each:08d}"
        place.mkdir(parents=True)
        (place / "model.safetensors").write_bytes(b"x" * 1_000_000)
    (folder / "config.yaml").write_text(CONFIG.format(encoding=encoding))
    lines = [{"step": n, "loss": 5.0 / n} for n in range(5, step + 1, 5)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def finish(run: Path) -> None:
    rows = [json.dumps({**ROW, "length": n, "value": v}) for n, v in ((64, 9.5), (128, 8.25))]
    (run / "rows.jsonl").write_text("\n".join(rows) + "\n")


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    make_run(tmp_path / "runs/a")
    finish(make_run(tmp_path / "runs/grid/runs/dape-alibi-seed1", encoding="dape-alibi"))
    (tmp_path / "runs/grid/compare.yaml").write_text("{}\n")
    return tmp_path


def checkpoints(top: Path) -> list[str]:
    return sorted(str(path.relative_to(top)) for path in top.rglob("step-*"))


def test_runs_are_listed_without_another_word(here, capsys):
    assert main(["runs"]) == 0
    shown = capsys.readouterr().out
    assert main(["runs", "list", "runs"]) == 0 and capsys.readouterr().out == shown
    assert "dape-alibi" in shown and "20/20" in shown and "2 runs, 4 MB" in shown
    assert "`dape runs clean runs` would free 2 MB" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_runs_as_json(here, capsys):
    assert main(["runs", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["folder"], first["method"], first["state"], first["loss"]) == ("runs/a", "alibi", "finished", 0.25)
    assert second["method"] == "dape-alibi" and second["size"] > 2_000_000


def test_a_run_is_shown(here, capsys):
    assert main(["runs", "show", "runs/grid/runs/dape-alibi-seed1"]) == 0
    shown = capsys.readouterr().out
    assert "model.encoding" in shown and "loss by step" in shown and "perplexity by length" in shown
    assert "checkpoints" in shown and max(map(len, shown.splitlines())) <= 80


def test_runs_are_compared(here, capsys):
    assert main(["runs", "compare", "runs/a", "runs/grid/runs/dape-alibi-seed1"]) == 0
    lines = {line.split("  ")[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert lines["model.encoding"][-2:] == ["alibi", "dape-alibi"] and "train.steps" not in lines
    assert lines["perplexity at 128"][-2:] == ["-", "8.25"]
    assert main(["runs", "compare", "runs/a"]) == 2
    assert "give two runs or more" in capsys.readouterr().err


def test_cleaning_keeps_what_is_needed(here, capsys):
    (here / "runs/a/checkpoints/.step-00000030.tmp").mkdir()
    assert main(["runs", "clean", "--yes"]) == 0
    assert "removed 3 folders, freed 2 MB" in capsys.readouterr().out
    assert checkpoints(here) == [
        "runs/a/checkpoints/step-00000020",
        "runs/grid/runs/dape-alibi-seed1/checkpoints/step-00000020",
    ]
    assert not list((here / "runs/a/checkpoints").glob(".*"))
    assert main(["runs", "clean", "--yes"]) == 0 and "nothing to remove" in capsys.readouterr().out


def test_models_go_only_when_told_and_only_where_results_are(here, capsys):
    assert main(["runs", "clean", "--weights", "--yes"]) == 0
    assert checkpoints(here) == ["runs/a/checkpoints/step-00000020"]
    assert (here / "runs/grid/runs/dape-alibi-seed1/rows.jsonl").is_file()


@pytest.mark.parametrize("answer", ["", "n", "what"])
def test_nothing_goes_without_a_yes(here, capsys, monkeypatch, answer):
    before = checkpoints(here)
    assert main(["runs", "clean", "--dry-run"]) == 0
    assert main(["runs", "clean"]) == 2 and "add --yes" in capsys.readouterr().err  # no terminal to ask at
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: answer)
    assert main(["runs", "clean"]) == 1
    assert checkpoints(here) == before


def test_a_run_at_work_and_links_are_left_alone(here, tmp_path_factory, capsys):
    outside = make_run(tmp_path_factory.mktemp("outside") / "b")
    os.symlink(outside, here / "runs/link")
    with locked(here / "runs/grid"):
        assert main(["runs", "clean", "runs/grid", "--yes"]) == 2
        assert "runs/grid is in use by another dape process" in capsys.readouterr().err
    assert main(["runs", "clean", "--yes"]) == 0
    assert len(checkpoints(outside)) == 2


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("runs nix", "nix: there is no such folder"),
        ("runs show runs", "runs: is not a run (no config.yaml nor job.json in it)"),
        ("runs show nix", "nix: is not a run"),
        ("runs clean nix", "nix: there is no such folder"),
    ],
)
def test_what_is_no_run(here, capsys, argv, words):
    assert main(argv.split()) == 2
    assert words in capsys.readouterr().err


def test_curves_keep_to_their_width():
    lines = curve_lines([1, 10, 100], [3.0, 1.0, 2.0], width=40, height=4, logarithmic=True)
    assert max(map(len, lines)) <= 40 and lines[0].startswith("3 ┤") and lines[3].startswith("1 ┤")
    assert lines[-1].split() == ["1", "100"]
    middle = [place for place, character in enumerate(lines[3]) if ord(character) > 0x2800]
    assert abs(middle[len(middle) // 2] - 3 - 18) <= 4  # the lowest point lies in the middle of a logarithmic axis
    assert curve_lines([1, 2], [5.0, 5.0], width=20)


def test_a_run_that_is_none_is_a_usage_error(tmp_path):
    from dape.actions.runs import open_run

    with pytest.raises(UsageError, match="is not a run"):
        open_run(tmp_path)
