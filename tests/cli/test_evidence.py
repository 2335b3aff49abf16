"""``dape evidence``: tables and a figure from folders of rows."""

from dataclasses import replace

from tests.experiments.reproduce.test_ladder import rows

from dape.cli import main
from dape.results.records import append_rows


def test_tables_and_figure(tmp_path, capsys):
    append_rows(tmp_path / "runs/code/results.jsonl", rows())
    append_rows(tmp_path / "runs/prose/results.jsonl", rows(data="sotu", gap=0.0, noise=0.0005))
    assert main(["evidence", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "| E1/1x |" in shown and shown.count("| yes |") == 4 and shown.count("| no |") == 2
    assert (tmp_path / "out/ladder.png").stat().st_size > 5000
    assert (tmp_path / "out/evidence.md").read_text() in shown


def test_nothing_there(tmp_path, capsys):
    assert main(["evidence", str(tmp_path)]) == 2
    assert "no results.jsonl in there" in capsys.readouterr().err
    append_rows(tmp_path / "results.jsonl", [replace(rows()[0], extra={})])
    assert main(["evidence", str(tmp_path)]) == 2
    assert "no rows of bias-ablation" in capsys.readouterr().err
