"""``dape mechanism``: two small runs, what is printed and written."""

import json
from pathlib import Path

import pytest
from tests.texts import random_words

from dape.cli import main

SIZES = ["--layers", "1", "--width", "16", "--heads", "2", "--train-length", "16", "--batch", "2", "--steps", "3"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("mechanism")
    (folder / "words.txt").write_text(random_words(300))
    for name, options in (("full", []), ("static", ["--encoding-options", "variant=bias_only"]), ("kerple", [])):
        encoding = "kerple" if name == "kerple" else "dape-kerple"
        argv = ["--data", str(folder / "words.txt"), "--out", str(folder / name), "--encoding", encoding]
        assert main(["train", *argv, *SIZES, *options]) == 0
    return folder


def look(*argv: str, expect: int = 0) -> None:
    assert main(["mechanism", *argv, "--threads", "1"]) == expect


def test_numbers(runs, tmp_path, capsys):
    path = tmp_path / "found.json"
    look(str(runs / "full"), "--against", str(runs / "static"), "--windows", "6", "--json", str(path))
    shown = capsys.readouterr().out
    assert "another text's" in shown and "mean at each lag" in shown and "layer 1:" in shown and "100% of" not in shown
    found = json.loads(path.read_text())
    assert found["perplexity"]["swapped"] != found["perplexity"]["usual"]
    assert found["evaluation"]["lengths"] == [16] and len(found["layers"][0]["share"]) == 2
    assert sum(gain["total_share"] for gain in found["gains"]) == pytest.approx(1)


def test_f_without_content(runs, tmp_path):
    path = tmp_path / "found.json"
    look(str(runs / "static"), "--windows", "4", "--length", "32", "--last-k", "8", "--json", str(path))
    found = json.loads(path.read_text())
    assert found["cost"]["swapped"]["nats"] == pytest.approx(0, abs=1e-5) and not found["gains"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("kerple --windows 4", "kerple has no f; this needs a model with dape-X"),
        ("full --windows 1", "--windows must be at least 2, got 1"),
        ("full --length 0", "--length must be at least 1"),
        ("full --against nowhere --windows 4", "nowhere"),
    ],
)
def test_wrong_arguments(runs, monkeypatch, capsys, argv, words):
    monkeypatch.chdir(runs)
    look(*argv.split(), expect=2)
    assert words in capsys.readouterr().err
