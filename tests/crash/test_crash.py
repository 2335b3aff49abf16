"""The program that kills: it notices what it is there to notice; a few rounds of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.crash.soak import LIMITS, slope
from tests.crash.state import differences, state_of


@pytest.fixture
def folder(tmp_path) -> Path:
    run = tmp_path / "run"
    for step in (3, 6):
        (run / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
        (run / "checkpoints" / f"step-{step:08d}" / "model.safetensors").write_bytes(bytes([step]))
    (run / "rows.jsonl").write_text(json.dumps({"value": 1.5, "extra": {"date": "today", "threads": 1}}) + "\n")
    return run


def change(folder: Path, name: str, old: str, new: str) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes().replace(old.encode(), new.encode()))


@pytest.mark.parametrize(
    ("disturb", "words"),
    [
        (lambda f: change(f, "checkpoints/step-00000006/model.safetensors", "\x06", "\x07"), "model.safetensors is"),
        (lambda f: change(f, "rows.jsonl", "1.5", "1.25"), "rows.jsonl.0.value is 1.25, undisturbed 1.5"),
        (lambda f: change(f, "rows.jsonl", "\n", "\n{}\n"), "rows.jsonl is [{"),
        (lambda f: (f / ".curves.png.17.tmp").touch(), ".curves.png.17.tmp was left"),
        (lambda f: (f / ".out.17.tmp").mkdir(), ".out.17.tmp was left"),
        (lambda f: (f / "rows.jsonl").unlink(), "rows.jsonl is missing"),
    ],
    ids=["weights", "value", "row", "file", "folder", "missing"],
)
def test_differences_are_found(folder, disturb, words):
    before = state_of(folder)
    disturb(folder)
    (found,) = differences(state_of(folder), before)
    assert words in found


def test_times_and_older_checkpoints_do_not_count(folder):
    before = state_of(folder)
    change(folder, "rows.jsonl", "today", "tomorrow")
    (folder / "checkpoints" / "step-00000003").rename(folder / "checkpoints" / "step-00000005")
    assert differences(state_of(folder), before) == []


def test_growth_is_seen():
    flat = [{"minute": float(m), "rss_mb": 400.0 + m % 2} for m in range(60)]
    growing = [{**sample, "rss_mb": sample["rss_mb"] + sample["minute"] / 4} for sample in flat]
    assert abs(slope(flat, "rss_mb")) < 1 < LIMITS["rss_mb"] < slope(growing, "rss_mb") < 16


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--rounds", "3", "--seed", "5"], ["--only", "train", "--rounds", "1", "--real"]])
def test_a_few_rounds(options):
    done = subprocess.run([sys.executable, "-m", "tests.crash", *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
