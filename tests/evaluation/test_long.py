"""Perplexity at 32768 and 65536 tokens, within the memory that docs/evaluation.md states."""

import json
import random
import subprocess
import sys

import pytest

SHAPE = "--layers 2 --width 128 --heads 2 --train-length 64 --batch 2 --steps 2"
ENCODINGS = {"dape-kerple": ["--encoding-options", "hidden=8"], "rope": []}
# Not ru_maxrss: a child begins with that of the process that started it.
PEAK = r"""
import re, sys
from pathlib import Path
from dape.cli import main
code = main(sys.argv[1:])
print("peak", int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024)
sys.exit(code)
"""
MEGABYTES = {32768: 700, 65536: 1000}
"""Torch itself takes 300 to 400. Time grows with the square: 131072 tokens would take four times as long."""


def dape(*argv: str) -> str:
    done = subprocess.run([sys.executable, "-c", PEAK, *argv], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_memory_grows_with_the_length_not_with_its_square(tmp_path, encoding):
    draw = random.Random(0)
    text, run = tmp_path / "text.txt", str(tmp_path / "run")
    text.write_text("".join(draw.choices("abcdefgh \n", k=4_000_000)))
    given = [*SHAPE.split(), "--encoding", encoding, *ENCODINGS[encoding]]
    dape("train", *given, "--data", str(text), "--out", run)
    for length, most in MEGABYTES.items():
        rows = tmp_path / f"{length}.jsonl"
        said = dape(
            *("eval", run, "--data", str(text), "--lengths", str(length), "--last-k", "64", "--windows", "1"),
            *("--reach", str(length), "--json", str(rows)),
        )
        peak = int(said.split("peak")[1])
        print(encoding, length, peak, "MB")
        assert peak < most
        assert 5 < json.loads(rows.read_text().splitlines()[0])["value"] < 400
