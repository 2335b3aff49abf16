"""``dape report``: from folders to a page, and what it says when there is none to be made."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from dape.cli import main
from dape.extras import install_command

pytest.importorskip("vl_convert", reason="pip install 'dape[report]'")

RESULTS = Path(__file__).parents[2] / "results"
ROW = {
    "run": "rope-0",
    "method": "rope",
    "seed": 0,
    "train_length": 64,
    "length": 128,
    "metric": "perplexity",
    "value": 7.5,
    "scored_tokens": 10,
    "protocol": "last_k",
    "data_hash": "abc",
}


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "r").mkdir()
    (tmp_path / "r/results.jsonl").write_text(json.dumps(ROW) + "\n")
    return tmp_path / "r"


def test_a_result_folder(tmp_path, capsys):
    shutil.copytree(RESULTS / "compare", tmp_path / "compare")
    assert main(["report", str(tmp_path / "compare")]) == 0
    assert "1 section, 126 rows" in capsys.readouterr().out
    page = (tmp_path / "compare/report.html").read_text()
    assert "Seven encodings, three seeds" in page and "the paper, A3, arxiv" in page
    assert main(["report", str(tmp_path / "compare")]) == 0  # a report takes the place of a report


def test_a_folder_of_folders(tmp_path, capsys):
    assert main(["report", str(RESULTS), "--out", str(tmp_path / "all.html")]) == 0
    count = len(list(RESULTS.rglob("results.jsonl")))
    assert f"{count} sections" in capsys.readouterr().out and count > 1
    page = (tmp_path / "all.html").read_text()
    assert page.index("Chomsky-hierarchy tasks on two cores") < page.index("Associative recall")
    assert [file.name for file in tmp_path.iterdir()] == ["all.html"]


def test_folders_are_found_three_levels_down_and_not_inside_of_results(folder, capsys):
    for place in ("inner", "../a/b/c", "../a/b/c2/d", "../.hidden"):
        (folder / place).mkdir(parents=True)
        shutil.copy(folder / "results.jsonl", folder / place)
    assert main(["report", str(folder.parent)]) == 0
    assert "2 sections" in capsys.readouterr().out
    page = (folder.parent / "report.html").read_text()
    assert f'<h2 id="s1-title">{Path("a/b/c")}</h2>' in page and "r/inner" not in page


def test_claims_and_maps_of_a_folder(folder):
    claim = {"id": "C7", "statement": "It is so", "ours": {"verdict": "fails"}, "paper": {"verdict": "not tested"}}
    (folder / "claims.json").write_text(json.dumps([claim, {"id": "C8"}]))
    (folder / "maps").mkdir()
    arrays = {name: np.zeros((1, 2, 3, 8), "f4") for name in ("scores", "bias", "f", "logits", "weights")}
    np.savez(folder / "maps/maps.npz", lags=np.arange(8)[::-1], **arrays)
    facts = {
        "format": "dape visualize 1",
        "method": "dape-kerple",
        "length": 8,
        "query": 8,
        "layers": [1, 2],
        "heads": [1, 2, 3],
    }
    facts["samples"] = [{"id": 1, "text": "some text"}]
    (folder / "maps/maps.json").write_text(json.dumps(facts))
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert "It is so" in page and "claim 2 is left out" in page and "Attention of dape-kerple, taken apart" in page


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"no archive"])
def test_damaged_maps_and_claims_do_not_cost_the_report(folder, capsys, content):
    (folder / "maps.npz").write_bytes(content)
    (folder / "maps.json").write_text('{"method": "rope"}')
    (folder / "claims.json").write_text("{")
    assert main(["report", str(folder)]) == 0
    told = capsys.readouterr().err
    assert "maps.npz is left out" in told and "claims.json is left out" in told


def test_pickles_in_maps_are_not_opened(folder, capsys):
    np.savez(
        folder / "maps.npz", lags=np.array([{}], dtype=object), scores=np.array([{}], dtype=object), allow_pickle=True
    )
    facts = {"format": "dape visualize 1", "layers": [1], "heads": [1], "samples": [], "length": 1}
    (folder / "maps.json").write_text(json.dumps(facts))
    assert main(["report", str(folder)]) == 0
    assert "allow_pickle" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ('{"run": "r', "line 3: it was not written to its end"),
        ("nonsense\n", "line 3: not a result row"),
        (json.dumps({**ROW, "length": "64"}) + "\n", "length: found '64', expected a whole number"),
        (json.dumps({**ROW, "extra": "text"}) + "\n", "is left out"),
        (json.dumps({**ROW, "value": 0}) + "\n", "perplexity 0"),
        (json.dumps({**ROW, "windows": [1]}) + "\n", "windows: found [1]"),
        (json.dumps({**ROW, "extra": {"depth": [1]}}) + "\n", "depth is [1]"),
        (json.dumps({**ROW, "protocol": "che", "extra": {"task": {}}}) + "\n", "task is {}"),
        (json.dumps({**ROW, "value": None}) + "\n", "is left out"),
    ],
)
def test_lines_that_cannot_be_read_are_left_out_with_a_warning(folder, capsys, bad, told):
    good = json.dumps(ROW) + "\n"
    (folder / "results.jsonl").write_text(good + "\n" + bad)
    assert main(["report", str(folder)]) == 0
    shown = capsys.readouterr()
    assert told in shown.err and "1 row" in shown.out
    assert "is left out" in (folder / "report.html").read_text()


def test_bytes_that_are_no_text_cost_one_line_only(folder, capsys):
    (folder / "results.jsonl").write_bytes(b'\xff\xfe{"run"\n' + json.dumps(ROW).encode() + b"\n")
    assert main(["report", str(folder)]) == 0
    assert "line 1: not a result row" in capsys.readouterr().err


def test_no_row_at_all(folder, capsys):
    (folder / "results.jsonl").write_text("nonsense\n\n")
    assert main(["report", str(folder)]) == 1
    assert "nothing of 1 result folders could be read" in capsys.readouterr().err
    assert not (folder / "report.html").exists()


def test_not_a_folder(folder, tmp_path, capsys):
    assert main(["report", str(folder / "results.jsonl")]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_nothing_to_report(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "no results.jsonl" in told and "3 levels below" in told and "dape compare --out DIR" in told


def test_another_file_is_not_overwritten(folder, tmp_path, capsys):
    other = tmp_path / "thesis.html"
    other.write_text("<html>years of work</html>")
    assert main(["report", str(folder), "--out", str(other)]) == 2
    assert "is not a report of dape" in capsys.readouterr().err
    assert other.read_text() == "<html>years of work</html>"
    assert main(["report", str(folder), "--out", str(folder / "results.jsonl")]) == 2
    assert main(["report", str(folder), "--out", str(tmp_path / "missing/report.html")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["report", str(folder), "--out", str(tmp_path)]) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written(folder, capsys):
    folder.chmod(0o500)
    assert main(["report", str(folder)]) == 2
    assert "cannot create files" in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(folder, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    assert main(["report", str(folder)]) == 2
    assert install_command("report") in capsys.readouterr().err


def test_help_loads_neither_torch_nor_charts(dape_process):
    shown = dape_process("report", "--help")
    assert shown.returncode == 0 and "--out" in shown.stdout and "results.jsonl" in shown.stdout
