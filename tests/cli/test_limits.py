"""Sizes that no machine has: refused at once, with what they would need."""

import time
from pathlib import Path

import pytest

from dape.cli import main
from dape.machine import available_bytes, check_threads, in_words, usable_cores
from dape.models.config import DecoderConfig
from dape.training.cost import memory_needed, require_fits


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("train --threads 100000", "--threads must be at least 1 and here at most"),
        ("eval runs/x --threads 100000", "--threads must be"),
        ("bench attention --threads 100000", "--threads must be"),
        ("che --threads 100000", "--threads must be"),
        ("train --layers 1000000", "--layers 1000000: the limit is 10,000"),
        ("train --layers 9999 --width 65536", "would need"),
        ("train --width 1000000000", "--width 1000000000: the limit is"),
        ("train --width 999424 --heads 8", "TB of memory"),
        ("train --batch 9000000", "x 64 tokens at a time would need"),
        ("train --preset 6.7b --data stdlib --layers 320", "would need"),
        ("compare --layers 9999 --width 65536", "would need"),
        ("che --samples 2147483648", "--samples 2147483648: the limit is 1,000,000"),
        ("visualize runs/x --samples 2147483648", "--samples 2147483648: the limit is"),
        ("probe runs/x --samples 2147483648", "--samples 2147483648: the limit is"),
        ("probe --train --width 999424 --heads 8", "would need"),
    ],
)
def test_refused_at_once(argv, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begin = time.monotonic()
    assert main(argv.split()) == 2
    assert words in capsys.readouterr().err and time.monotonic() - begin < 20
    assert not list(Path().rglob("*.safetensors"))


def test_dry_run_says_what_it_needs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "4 layers of width 128" in told and "memory: about" in told and "nothing was run" in told
    assert not list(tmp_path.iterdir())
    assert main(["train", "--dry-run", "--width", "999424"]) == 2
    assert "would need" in capsys.readouterr().err


def test_what_is_needed_grows_with_everything():
    small = DecoderConfig()
    assert memory_needed(small) < memory_needed(small, training=True) < memory_needed(small, training=True, batch=16)
    require_fits(small, available_bytes(), training=True, batch=16)


def test_threads():
    check_threads(1)
    check_threads(usable_cores())
    with pytest.raises(ValueError, match="got 0"):
        check_threads(0)


def test_bytes_in_words():
    assert [in_words(n) for n in (12, 1234, 3.2e6, 2.34e10, 3.2e12, 5e15)] == [
        "12 bytes",
        "1.23 kB",
        "3.2 MB",
        "23.4 GB",
        "3.2 TB",
        "5 PB",
    ]


def test_lengths_that_no_memory_can_hold(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["probe", "--train", "--methods", "alibi", "--lengths", str(10**15), "--out", "out"]) == 2
    assert "one sequence would need" in capsys.readouterr().err and not (tmp_path / "out").exists()
