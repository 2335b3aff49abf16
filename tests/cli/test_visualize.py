"""``dape visualize``: arrays, pictures and words from a checkpoint, and what it says when that is impossible."""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.texts import random_words

from dape.actions.progress import ProgressLine
from dape.cli import main
from dape.evaluation.map_files import STAGES, read_maps
from dape.report import bias_maps

SIZES = ["--layers", "2", "--width", "12", "--heads", "3", "--train-length", "8"]
TINY = [*SIZES, "--batch", "2", "--steps", "2", "--threads", "1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A folder with a text, and runs on it."""
    folder = tmp_path_factory.mktemp("runs")
    lines = random_words(400)
    (folder / "words.txt").write_text(lines)
    (folder / "other.txt").write_text("\n".join(reversed(lines.split("\n"))))
    words = str(folder / "words.txt")
    learned = ["--encoding", "learned", "--encoding-options", "max_positions=16"]
    dape = ["--encoding", "dape-kerple", "--encoding-options", "variant=concat", "--save-every", "1", "--seed", "7"]
    for name, flags in {"dape": dape, "alibi": ["--encoding", "alibi"], "learned": learned}.items():
        assert main(["train", "--data", words, *TINY, *flags, "--out", str(folder / name)]) == 0
    return folder


@pytest.fixture(autouse=True)
def elsewhere(runs, isolated, monkeypatch):
    monkeypatch.chdir(runs)


@pytest.fixture
def undrawn(monkeypatch):
    """Empty files instead of figures, which take seconds."""

    def touch(maps, folder, watch):
        paths = [folder / f"{name}.png" for name in bias_maps.figures_of(maps)]
        for path in paths:
            watch(path.stem)
            path.touch()
        return paths

    monkeypatch.setattr(bias_maps, "draw_maps", touch)


def look(*argv: str, expect: int = 0) -> None:
    assert main(["visualize", *argv, "--threads", "1"]) == expect


def test_arrays_words_and_pictures(capsys, tmp_path):
    out = tmp_path / "new" / "maps"
    look("dape", "--out", str(out), "--length", "21", "--samples", "3", "--layers", "2", "--heads", "3", "1")
    maps = read_maps(out)
    facts = maps.facts
    assert (facts["method"], facts["variant"], facts["options"]) == ("dape-kerple", "concat", {"variant": "concat"})
    assert (facts["train_length"], facts["length"], facts["query"]) == (8, 21, 21)
    assert (facts["layers"], facts["heads"], facts["model_layers"], facts["model_heads"]) == ([2], [1, 3], 2, 3)
    assert (facts["step"], facts["seed"], facts["run"]) == (2, 7, "dape")
    assert facts["checkpoint"] == "dape/checkpoints/step-00000002" and facts["image"]["first"] == 1
    assert {"torch", "commit", "cpu", "date", "threads"} <= set(facts["provenance"])
    assert {stage: maps.rows[stage].shape for stage in STAGES} == dict.fromkeys(STAGES, (3, 1, 2, 21))
    assert {stage: maps.images[stage].shape for stage in STAGES} == dict.fromkeys(STAGES, (1, 2, 21, 21))
    np.testing.assert_allclose(maps.rows["logits"], maps.rows["scores"] + maps.rows["f"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(maps.rows["f"][0], maps.images["f"][:, :, -1], rtol=1e-5, atol=1e-6)
    assert [(head["layer"], head["head"]) for head in facts["heads_summary"]] == [(2, 1), (2, 3)]
    drawn = ["triples-sample1", "triples-sample2", "f-by-lag", "bias-by-lag", "images-layer2"]
    expected = {f"{name}.{ending}" for name in drawn for ending in ("png", "svg")}
    files = expected | {"maps.npz", "images.npz", "maps.json", "summary.md"}
    assert {path.name for path in out.iterdir()} == set(facts["files"]) == files
    said, written = capsys.readouterr().out, (out / "summary.md").read_text()
    shown = " ".join(said.split())
    points = [line.removeprefix("- ") for line in written.splitlines() if line.startswith("- ")]
    assert points and all(" ".join(point.split()) in shown for point in points)
    assert max(map(len, said.splitlines()[:-1])) <= 80
    assert "the last query of 3 windows of 21 tokens, layer 2 of 2, heads 1 and 3 of 3" in shown
    assert said.endswith(f"wrote {out}: maps.npz, maps.json, summary.md and figures\n")


def test_samples_are_held_out_text(undrawn, tmp_path):
    from dape.data.corpora import open_data

    look("dape", "--out", str(tmp_path / "maps"), "--length", "300", "--samples", "2", "--window", "0")
    corpus = open_data("dape/data")
    facts = read_maps(tmp_path / "maps").facts
    assert facts["data_hash"] == corpus.hash and [sample["id"] for sample in facts["samples"]] == [1, 2]
    for sample in facts["samples"]:
        window = corpus.validation.read(sample["end"] - 300, sample["end"])
        assert sample["text"] == corpus.tokenizer.decode(window)[-200:] and len(sample["text"]) == 200
    assert facts["samples"][0]["text"] != facts["samples"][1]["text"]


def test_defaults(undrawn, capsys, tmp_path):
    shutil.copytree("alibi", tmp_path / "alibi")
    look(str(tmp_path / "alibi"))
    maps = read_maps(tmp_path / "alibi" / "maps-32")
    assert maps.rows["f"].shape == (4, 2, 3, 32) and (maps.rows["f"] == 0).all()
    assert maps.images["f"].shape == (2, 3, 32, 32)
    assert all(head["input_dependence"] == 0 and head["kind"] == "flat" for head in maps.facts["heads_summary"])
    assert all(head["bias_input_dependence"] == 0 for head in maps.facts["heads_summary"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "There is no f" in shown and "B is local in 6 of 6 heads; its input dependence is 0.0%" in shown


def test_images_of_the_last_positions(undrawn, tmp_path):
    look("dape", "--out", str(tmp_path / "a"), "--length", "20", "--window", "6", "--samples", "1")
    maps = read_maps(tmp_path / "a")
    assert maps.images["f"].shape == (2, 3, 6, 6)
    assert maps.facts["image"] == {"sample": 1, "first": 15, "last": 20}
    assert np.isnan(maps.images["weights"][0, 0]).sum() == 15
    look("dape", "--out", str(tmp_path / "b"), "--length", "20", "--window", "0", "--samples", "1")
    assert read_maps(tmp_path / "b").images is None and read_maps(tmp_path / "b").facts["image"] is None


def test_a_checkpoint_other_text_and_no_run(undrawn, capsys, tmp_path):
    few = ["--length", "9", "--samples", "2", "--window", "0"]
    found = []
    for name, argv in {
        "new": ["dape"],
        "old": ["dape/checkpoints/step-00000001"],
        "text": ["dape", "--data", "other.txt"],
    }.items():
        look(*argv, *few, "--out", str(tmp_path / name))
        found.append(read_maps(tmp_path / name))
    assert [maps.facts["step"] for maps in found] == [2, 1, 2]
    assert found[0].facts["data_hash"] != found[2].facts["data_hash"]
    assert all((found[0].rows["scores"] != maps.rows["scores"]).any() for maps in found[1:])
    shutil.copytree("dape/checkpoints/step-00000002", tmp_path / "alone" / "copy")
    capsys.readouterr()
    look(str(tmp_path / "alone" / "copy"), *few, expect=2)
    assert "does not belong to a run's folder; name a folder for the maps with --out" in capsys.readouterr().err
    look(str(tmp_path / "alone" / "copy"), *few, "--out", str(tmp_path / "maps"), "--data", "dape/data")


def test_fewer_windows_than_asked_for(undrawn, capsys, tmp_path):
    from dape.data.corpora import open_data

    longest = len(open_data("dape/data").validation) - 1
    look("dape", "--out", str(tmp_path / "maps"), "--length", str(longest), "--window", "0", "--samples", "3")
    assert "room for 1 window only, not 3" in capsys.readouterr().out


# Folders that exist --------------------------------------------------------------------------------------------------

FEW = ["--length", "9", "--samples", "1", "--window", "4"]


def test_earlier_maps_are_replaced(undrawn, tmp_path):
    out = tmp_path / "maps"
    look("dape", *FEW, "--out", str(out))
    look("alibi", *FEW[:-1], "0", "--out", str(out))
    assert read_maps(out).facts["method"] == "alibi"
    assert {path.name for path in out.iterdir()} == set(read_maps(out).facts["files"])
    assert not (out / "images.npz").exists() and not (out / "f-by-lag.png").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["maps"]


def test_an_empty_folder_is_used(undrawn, tmp_path):
    look("dape", *FEW, "--out", str(tmp_path))
    assert read_maps(tmp_path).facts["method"] == "dape-kerple"


def test_files_of_others_are_never_touched(undrawn, capsys, tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    look("dape", *FEW, "--out", str(tmp_path), expect=2)
    assert "holds notes.txt, which `dape visualize` did not write; choose another folder" in capsys.readouterr().err
    out = tmp_path / "maps"
    look("dape", *FEW, "--out", str(out))
    (out / "a.txt").write_text("mine")
    (out / "b.txt").write_text("mine")
    look("dape", *FEW, "--out", str(out), expect=2)
    assert "holds a.txt and 1 more" in capsys.readouterr().err
    assert (out / "a.txt").read_text() == notes.read_text() == "mine"
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "maps.json").write_text(json.dumps({"format": "other", "files": ["maps.json"]}))
    look("dape", *FEW, "--out", str(tmp_path / "json"), expect=2)
    look("dape", *FEW, "--out", str(notes), expect=2)
    assert "is a file, not a folder" in capsys.readouterr().err


@pytest.mark.parametrize("late", [False, True])
def test_a_failure_leaves_what_was_there(undrawn, monkeypatch, tmp_path, capsys, late):
    out = tmp_path / "maps"
    look("dape", *FEW, "--out", str(out))
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def fail(*args, **kwargs):
        raise OSError("disk full")

    rename = os.rename
    if late:  # when the old folder has been moved aside already
        monkeypatch.setattr(os, "rename", lambda a, b: fail() if str(a).endswith(".tmp") else rename(a, b))
    else:
        monkeypatch.setattr(bias_maps, "draw_maps", fail)
    look("alibi", *FEW, "--out", str(out), expect=1)
    assert "disk full" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["maps"]


# Refused -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("nowhere", "nowhere: there is no such checkpoint or run"),
        ("words.txt", "words.txt: holds no checkpoint; give the folder of a run of `dape train`"),
        ("dape --samples 0", "--samples must be at least 1, got 0; input dependence needs 2 or more"),
        ("dape --length 0", "--length must be at least 1, got 0"),
        ("dape --window -1", "--window must be 0 (no images) or more, got -1"),
        ("dape --layers 3", "--layers 3: there is no such layer; the model has layers 1 to 2, counted from 1"),
        ("dape --layers 1 0 9", "--layers 0, 9: there is no such layer"),
        ("dape --heads 4", "--heads 4: there is no such head; the model has heads 1 to 3"),
        ("dape --length 99999", "too few for evaluation length 99999, which needs 100000"),
        ("learned --length 17", "learned cannot be evaluated at length 17: learned positions reach from 0 to 15"),
        ("dape --data nowhere", "nowhere: no such file or folder"),
        ("dape --device meta", "--device meta: cannot be used here"),
        ("dape --out words.txt/maps", "words.txt is a file, not a folder"),
        ("dape --layers two", "--layers"),
        ("", "A run's folder"),
    ],
)
def test_wrong_arguments(capsys, argv, words):
    before = sorted(Path().rglob("*"))
    assert main(["visualize", *argv.split()]) == 2
    shown = capsys.readouterr()
    assert words in shown.err and "Traceback" not in shown.err
    assert sorted(Path().rglob("*")) == before


def test_a_learned_table_that_suffices(undrawn, tmp_path):
    look("learned", "--length", "16", "--samples", "1", "--out", str(tmp_path / "maps"))
    assert (read_maps(tmp_path / "maps").rows["bias"] == 0).all()


def test_progress_in_lines_or_on_a_terminal(undrawn, capsys, monkeypatch, tmp_path):
    look("dape", *FEW, "--out", str(tmp_path / "a"))
    assert capsys.readouterr().err.startswith("sample 1/1\n")
    monkeypatch.setattr(ProgressLine, "REDRAWN", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    look("dape", *FEW, "--out", str(tmp_path / "b"))
    heard = capsys.readouterr().err
    assert all(word in heard for word in ("sample 1/1", "images", "drawing f-by-lag"))
