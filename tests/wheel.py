"""Run by `make wheel` with the built wheel in front of the path: what a user installs has everything it needs."""

import contextlib
import io
import tempfile
from pathlib import Path

import dape
from dape.cli import main


def run(*words: str) -> str:
    """What a command prints."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = main(list(words))
    assert code == 0, (words, code, said.getvalue())
    return said.getvalue()


home = Path(dape.__file__).resolve().parent
assert "build/wheel" in home.as_posix(), f"{home} is not the wheel"
missing = [
    name
    for name in (
        *("py.typed", "results/paper/tables/A3.csv", "conformance/vectors/SHA256SUMS"),
        *(f"ops/attention/fused/{name}" for name in ("kernel.cpp", "products.h", "strips.h", "relative.cpp")),
    )
    if not (home / name).is_file()
]
assert not missing, f"the wheel lacks {missing}"
assert not (home.parent / "tests").exists(), "the wheel brings the tests"
assert "dape-kerple" in run("list")
assert "nothing was run" in run("reproduce", "bias-ablation", "--scale", "paper", "--data", "x", "--dry-run")
with tempfile.TemporaryDirectory() as folder:
    text = Path(folder, "words.txt")
    text.write_text(" ".join(f"word{n % 7} and {n % 13}" for n in range(3000)))
    small = ["--layers=1", "--width=16", "--heads=2", "--train-length=8", "--batch=2", "--steps=4"]
    small += ["--lengths", "8", "16", "--windows", "3"]
    out = f"{folder}/out"
    run("compare", "--data", str(text), "--methods", "alibi", "dape-alibi", "--out", out, *small)
    run("report", out)
    assert Path(out, "report.html").stat().st_size > 100_000
print(f"the wheel of dape {dape.__version__} works: list, reproduce, compare, report")
