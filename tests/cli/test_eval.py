"""``dape eval``: tables and rows from a checkpoint, and what it says when that is impossible."""

import json
import os
import shutil
from pathlib import Path

import pytest
from tests.texts import random_words

from dape.cli import main
from dape.data.corpora import open_data
from dape.results.records import read_rows

SIZES = ["--layers", "1", "--width", "16", "--heads", "2", "--train-length", "8"]
TINY = [*SIZES, "--batch", "2", "--steps", "4", "--threads", "1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A folder with a text, and runs on it: rope, learned, bpe (on a prepared folder)."""
    folder = tmp_path_factory.mktemp("runs")
    lines = random_words(150)
    (folder / "words.txt").write_text(lines)
    (folder / "other.txt").write_text("\n".join(reversed(lines.split("\n"))))
    words = str(folder / "words.txt")
    rope = ["--encoding", "rope", "--save-every", "2", "--seed", "7"]
    assert main(["train", "--data", words, *TINY, *rope, "--out", str(folder / "rope")]) == 0
    learned = ["--encoding", "learned", "--encoding-options", "max_positions=16"]
    assert main(["train", "--data", words, *TINY, *learned, "--out", str(folder / "learned")]) == 0
    return folder


@pytest.fixture(autouse=True)
def elsewhere(runs, isolated, monkeypatch):
    monkeypatch.chdir(runs)
    monkeypatch.setenv("COLUMNS", "200")


def evaluate(*argv: str, expect: int = 0) -> None:
    assert main(["eval", *argv, "--threads", "1"]) == expect


SHORT = ["--lengths", "8", "16", "--last-k", "4", "--windows", "3"]


@pytest.mark.parametrize(
    ("run", "lengths", "why"),
    [("rope", [8, 16, 32, 64], "the reach is 64 tokens"), ("learned", [8, 16], "learned ends before")],
)
def test_lengths_are_those_of_the_run(capsys, tmp_path, run, lengths, why):
    """Its training length and doublings, as far as text and encoding allow."""
    evaluate(run, "--windows", "2", "--json", str(tmp_path / "rows.jsonl"))
    rows = read_rows(tmp_path / "rows.jsonl")
    assert [row.length for row in rows] == lengths and {row.k for row in rows} == {8}
    told = capsys.readouterr().err
    assert f"note: lengths from {2 * lengths[-1]} on are left out" in told and why in told
    assert "8 tokens: window" in told  # no terminal here: progress in lines


def test_table_and_rows(capsys, tmp_path):
    path = tmp_path / "rows.jsonl"
    evaluate("rope", *SHORT, "--json", str(path))
    shown = capsys.readouterr().out
    rows = read_rows(path)
    assert [row.length for row in rows] == [8, 16]
    assert shown.startswith("rope, step 4: last_k 4, packed, reach 64, data ") and f"appended 2 rows to {path}" in shown
    for row in rows:
        assert [str(row.length), f"{row.value:.4f}", "12", "3"] in [line.split() for line in shown.splitlines()]
        assert (row.run, row.method, row.seed, row.train_length, row.step) == ("rope", "rope", 7, 8, 4)
        assert (row.metric, row.protocol, row.k, row.windows, row.mode) == ("perplexity", "last_k", 4, 3, "packed")
        assert (row.scored_tokens, row.tokenizer, len(row.window_nll)) == (12, "bytes", 3)
        assert row.data_hash == open_data("rope/data").hash
        assert {"torch", "commit", "cpu", "date", "threads"} <= set(row.extra)
    evaluate("rope", *SHORT, "--json", str(path))
    again = read_rows(path)
    assert len(again) == 4 and [row.value for row in again[2:]] == [row.value for row in rows]


def test_a_checkpoint_or_its_run(capsys):
    tables = []
    for path in ("rope", "rope/checkpoints", "rope/checkpoints/step-00000004", "rope/checkpoints/step-00000002"):
        evaluate(path, *SHORT)
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1] == tables[2] != tables[3]


def test_by_position(capsys):
    evaluate("rope", "--lengths", "8", "--windows", "3", "--protocol", "per_position")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[1] for line in lines if line[:1] == ["8"]] == ["0-0", "1-1", "2-3", "4-7"]
    assert ["length", "positions", "nats", "tokens", "windows"] in lines


def test_other_protocols(tmp_path):
    for name in ("full", "nonoverlap"):
        evaluate(
            "rope",
            "--lengths",
            "8",
            "16",
            "--windows",
            "2",
            "--protocol",
            name,
            "--json",
            str(tmp_path / name),
            "--reach",
            "16",
        )
    full, whole = (read_rows(tmp_path / name) for name in ("full", "nonoverlap"))
    assert [row.scored_tokens for row in full] == [16, 32] and [row.scored_tokens for row in whole] == [32, 32]
    assert all(row.k is None for row in [*full, *whole])


def test_fewer_windows_than_asked_for(capsys):
    evaluate("rope", "--lengths", "8", "--last-k", "8", "--windows", "1000")
    assert "room for" in capsys.readouterr().out


# Other text ----------------------------------------------------------------------------------------------------------


def test_other_text(tmp_path):
    evaluate("rope", *SHORT, "--json", str(tmp_path / "own"))
    evaluate("rope", *SHORT, "--data", "other.txt", "--json", str(tmp_path / "other"))
    evaluate("rope", *SHORT, "--data", "words.txt", "--json", str(tmp_path / "named"))
    own, other, named = (read_rows(tmp_path / name) for name in ("own", "other", "named"))
    assert own[0].data_hash != other[0].data_hash and own[0].value != other[0].value
    assert own[0].data_hash == named[0].data_hash and own[0].value == named[0].value


def test_a_checkpoint_alone(capsys, tmp_path):
    shutil.copytree("rope/checkpoints/step-00000004", tmp_path / "alone" / "copy")
    evaluate(str(tmp_path / "alone" / "copy"), *SHORT, expect=2)
    assert "does not say where its data is; name it with --data" in capsys.readouterr().err
    evaluate(str(tmp_path / "alone" / "copy"), *SHORT, "--data", "rope/data")


def test_text_of_another_tokenizer(capsys, tmp_path):
    pytest.importorskip("tokenizers")
    open_data("words.txt", out=tmp_path / "bpe", tokenizer="bpe:270")
    evaluate("rope", *SHORT, "--data", str(tmp_path / "bpe"), expect=2)
    shown = capsys.readouterr().err
    assert "bpe:270" in shown and "was trained with bytes" in shown and "dape prepare" in shown


def test_a_model_with_a_tokenizer_of_its_own(capsys, tmp_path):
    pytest.importorskip("tokenizers")
    open_data("words.txt", out=tmp_path / "bpe", tokenizer="bpe:270")
    run = str(tmp_path / "run")
    assert main(["train", "--data", str(tmp_path / "bpe"), *TINY, "--encoding", "rope", "--out", run]) == 0
    evaluate(run, *SHORT)
    evaluate(run, *SHORT, "--data", "other.txt")  # prepared with the model's tokenizer
    info = Path(run) / "checkpoints/step-00000004/tokenizer-info.json"
    info.write_text(info.read_text().replace("bpe:270", "bpe:271"))
    evaluate(run, *SHORT, expect=1)
    assert "tokenizer-info.json: damaged, it is not what was written" in capsys.readouterr().err


# Refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ("nowhere", 2, "nowhere: there is no such checkpoint or run"),
        (". --lengths 8 --last-k 4", 2, "holds no checkpoint; give the folder of a run"),
        ("words.txt", 2, "words.txt: holds no checkpoint"),
        ("rope --lengths 0 --last-k 1", 2, "--lengths must be positive, got 0"),
        ("rope --lengths 8 --last-k 9", 2, "length 8 is shorter than the 9 tokens to score"),
        ("rope --lengths 8 --last-k 0", 2, "--last-k must be at least 1"),
        ("rope --lengths 8 --last-k 8 --windows 0", 2, "--windows must be at least 1"),
        ("rope --lengths 9999 --last-k 8", 2, "too few for evaluation length 9999, which needs 10000"),
        ("rope --lengths 9999 --last-k 8 --mode same_document", 2, "longest held-out document has"),
        ("rope --lengths 9999 --protocol nonoverlap", 2, "too few for evaluation length 9999"),
        ("rope --lengths 8 --protocol nonoverlap --mode same_document", 2, "it has no --mode same_document"),
        ("rope --lengths 8 --last-k 8 --data nowhere", 2, "nowhere: no such file or folder"),
        ("rope --lengths 8 --last-k 8 --data -", 2, "standard input can be read only once; prepare it first"),
        ("rope --lengths 8 --last-k 8 --json nowhere/rows.jsonl", 2, "does not exist; create it first"),
        ("rope --lengths 8 --last-k 8 --device meta", 2, "--device meta: cannot be used here"),
        ("rope --lengths eight", 2, "--lengths"),
        ("rope --protocol last", 2, "last"),
        ("", 2, "A run's folder"),
        ("learned --lengths 8 16 32 --last-k 4 --windows 3", 1, "learned positions reach from 0 to 15"),
    ],
)
def test_wrong_arguments(capsys, argv, code, words):
    assert main(["eval", *argv.split()]) == code
    shown = capsys.readouterr()
    assert words in shown.err and "Traceback" not in shown.err


def test_what_was_measured_before_an_error_is_kept(capsys, tmp_path):
    path = tmp_path / "rows.jsonl"
    evaluate("learned", "--lengths", "8", "16", "32", "--last-k", "4", "--json", str(path), expect=1)
    assert [row.length for row in read_rows(path)] == [8, 16]
    shown = capsys.readouterr()
    assert "appended 2 rows" in shown.out and "max_positions" in shown.err


def test_a_damaged_checkpoint(capsys, tmp_path):
    shutil.copytree("rope", tmp_path / "run")
    newest = tmp_path / "run/checkpoints/step-00000004"
    (newest / "model.safetensors").write_bytes(b"?")
    evaluate(str(tmp_path / "run"), *SHORT, expect=1)
    assert "model.safetensors: damaged, it is not what was written" in capsys.readouterr().err
    path = newest / "checkpoint.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 9}))
    evaluate(str(tmp_path / "run"), *SHORT, expect=1)
    assert "format 9, while this version of dape reads format 1" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_checkpoint_that_cannot_be_written(tmp_path):
    shutil.copytree("rope", tmp_path / "run")
    newest = tmp_path / "run/checkpoints/step-00000004"
    newest.chmod(0o555)
    evaluate(str(tmp_path / "run"), *SHORT, "--data", "other.txt")


# Several processes ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("count", "protocol"), [(2, "last_k"), (4, "full"), (2, "nonoverlap"), (2, "per_position")])
def test_processes_that_share_windows_find_the_same(dape_process, tmp_path, count, protocol):
    given = [*SHORT, "--protocol", protocol, "--json"]
    evaluate("rope", *given, str(tmp_path / "one.jsonl"))
    said = dape_process("eval", "rope", *given, str(tmp_path / "several.jsonl"), "--processes", str(count))
    assert said.returncode == 0, said.stderr
    one, several = (read_rows(tmp_path / f"{name}.jsonl") for name in ("one", "several"))
    assert [(row.length, row.scored_tokens) for row in several] == [(row.length, row.scored_tokens) for row in one]
    assert [row.value for row in several] == pytest.approx([row.value for row in one], rel=1e-5)
    assert f"{count} processes, at most " in said.stdout
    assert said.stdout.count("rope, step 4") == 1


@pytest.mark.slow
def test_what_is_impossible_is_said_once(dape_process):
    done = dape_process("eval", "learned", "--lengths", "32", "--last-k", "4", "--processes", "2", "--reach", "32")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("max_positions") == 1


def test_too_many_processes(capsys):
    evaluate("rope", *SHORT, "--processes", "65", expect=2)
    assert "--processes must lie between 1 and 64 on one machine, got 65" in capsys.readouterr().err
