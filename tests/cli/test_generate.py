"""``dape generate``: text from a checkpoint."""

import io
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dape.actions import generate
from dape.cli import main
from dape.data.corpora import open_data

TINY = ["--layers", "1", "--width", "16", "--heads", "2", "--train-length", "8", "--batch", "8", "--threads", "1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Trained long enough to write letters and blanks."""
    folder = tmp_path_factory.mktemp("runs")
    draw = random.Random(0)
    (folder / "words.txt").write_text(" ".join(draw.choices(["the", "cat", "sat", "on", "mats"], k=700)))
    argv = ["train", "--data", str(folder / "words.txt"), *TINY, "--lr", "2e-2", "--steps", "60"]
    assert main([*argv, "--out", str(folder / "run")]) == 0
    return folder / "run"


@pytest.fixture
def text(run, capsys, monkeypatch):
    """What ``dape generate`` prints, apart from the line break at the end."""
    monkeypatch.delenv("DAPE_DEBUG", raising=False)

    def of(*argv: str) -> str:
        assert main(["generate", str(run), "--threads", "1", *argv]) == 0
        shown = capsys.readouterr()
        assert shown.err == "" and shown.out.endswith("\n")
        return shown.out[:-1]

    return of


def test_a_text(text):
    found = text("--prompt", "the cat", "--tokens", "40")
    assert found.startswith("the cat") and len(found) > 20
    assert set(found) <= set("thecasonm "), "it has learned which letters there are"


def test_seeds(text):
    first, again, other = (text("--tokens", "30", "--seed", seed) for seed in ("1", "1", "2"))
    assert first == again != other


def test_the_same_without_the_cache(text):
    for argv in (["--temperature", "0"], ["--temperature", "1.5", "--top-k", "9", "--top-p", "0.9"]):
        argv = ["--prompt", "the cat", "--tokens", "25", *argv]
        assert text(*argv) == text(*argv, "--no-cache")


def test_the_most_likely_text_needs_no_seed(text):
    ways = (["--temperature", "0"], ["--temperature", "0", "--seed", "2"], ["--top-k", "1"], ["--temperature", "1e-40"])
    assert len({text("--tokens", "20", *way) for way in ways}) == 1


def test_tokens_are_counted(text):
    """Bytes are tokens, and this model writes only ASCII."""
    assert len(text("--prompt", "on ", "--tokens", "30", "--temperature", "0")) == 33


def test_the_prompt_from_standard_input(text, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("the mats"))
    assert text("--prompt", "-", "--tokens", "3", "--temperature", "0").startswith("the mats")


def test_the_end_of_a_document_ends_the_text(text, monkeypatch):
    tokens = iter([[104], [105], [256], [106]])
    new = (torch.tensor(next(tokens)) for _ in range(4))
    monkeypatch.setattr("dape.models.generate.generate", lambda *args, **kwargs: new)
    assert text("--prompt", "a") == "ahi"


def test_characters_of_several_bytes_are_printed_whole(text, monkeypatch, capsys):
    written = [*"é\N{SNOWMAN}".encode(), 0xE2, 65, 0xFF]
    pieces = []
    monkeypatch.setattr("dape.models.generate.generate", lambda *a, **k: (torch.tensor([i]) for i in written))
    real = generate.added
    monkeypatch.setattr(generate, "added", lambda *args: (pieces.append(args[0]), real(*args))[1])
    assert text("--prompt", "ü") == "üé\N{SNOWMAN}\N{REPLACEMENT CHARACTER}A"
    assert len(pieces) == len(written)


def test_what_is_new():
    assert generate.added("ab", "a") == "b"
    assert generate.added("ab\N{REPLACEMENT CHARACTER}", "ab") == ""
    assert generate.added("abé", "ab") == "é"


def test_a_model_with_a_padded_vocabulary(tmp_path, run, capsys):
    """1000 and more ids are rounded up to a multiple of 128; those beyond the tokenizer must never be chosen."""
    pytest.importorskip("tokenizers")
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijkl", k=6)) for _ in range(800)]
    (tmp_path / "words.txt").write_text(" ".join(draw.choices(words, k=4000)))
    corpus = open_data(str(tmp_path / "words.txt"), out=tmp_path / "bpe", tokenizer="bpe:1030")
    assert corpus.tokenizer.vocabulary > 1024
    out = str(tmp_path / "run")
    assert main(["train", "--data", str(tmp_path / "bpe"), *TINY, "--steps", "1", "--out", out]) == 0
    capsys.readouterr()
    assert main(["generate", out, "--prompt", "abc", "--temperature", "100", "--tokens", "100"]) == 0
    assert capsys.readouterr().out.startswith("abc")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--prompt", ""], "--prompt is empty"),
        (["--tokens", "0"], "--tokens must be at least 1"),
        (["--temperature", "-1"], "--temperature must be 0 or more"),
        (["--temperature", "nan"], "--temperature must be 0 or more"),
        (["--temperature", "inf"], "--temperature must be 0 or more"),
        (["--top-k", "-1"], "--top-k must be 0 (all) or more"),
        (["--top-p", "0"], "--top-p must lie between 0 and 1"),
        (["--top-p", "1.1"], "--top-p must lie between 0 and 1"),
        (["--top-p", "nan"], "--top-p must lie between 0 and 1"),
        (["--device", "meta"], "--device meta: cannot be used here"),
        (["--tokens", "many"], "--tokens"),
        (["--seed", "99999999999999999999"], "--seed must lie between -2^63 and 2^63 - 1, got a number of 20 digits"),
        (["--seed", "-1"], "--seed must lie between 0 and"),
    ],
)
def test_wrong_arguments(run, capsys, monkeypatch, argv, words):
    monkeypatch.delenv("DAPE_DEBUG", raising=False)
    assert main(["generate", str(run), *argv]) == 2
    shown = capsys.readouterr()
    assert words in shown.err and shown.out == ""


def test_no_checkpoint(capsys, tmp_path):
    assert main(["generate", str(tmp_path / "nowhere")]) == 2
    assert "there is no such checkpoint or run" in capsys.readouterr().err
    assert main(["generate", str(tmp_path)]) == 2
    assert "holds no checkpoint" in capsys.readouterr().err


@pytest.mark.slow
def test_as_a_process(run, dape_process):
    """Reproducible between processes, and a pipe that closes early is no error."""
    argv = ["generate", str(run), "--prompt", "the", "--tokens", "50"]
    first, again = dape_process(*argv), dape_process(*argv)
    assert first.returncode == 0 and first.stdout == again.stdout and first.stderr == ""
    command = f"'{sys.executable}' -m dape generate '{run}' --tokens 3000 | head -c 20"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True)
    assert done.stderr == "" and done.returncode in (0, 141)
