"""Run by `make wheel` with the Python of an empty environment that the wheel was installed into: what a user installs
has everything it needs, outside the repository, where no compiler can be found."""

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMAND = Path(sys.executable).with_name("dape")
SMALL = ["--layers=1", "--width=16", "--heads=2", "--train-length=8", "--batch=2", "--steps=4"]
SMALL += ["--lengths", "8", "16", "--windows", "3"]
WANTED = ("py.typed", "results/paper/tables/A3.csv", "conformance/vectors/SHA256SUMS")
SOURCES = tuple(f"ops/attention/fused/{name}" for name in ("kernel.cpp", "products.h", "strips.h", "relative.cpp"))


def main() -> None:
    import dape

    home = Path(dape.__file__).resolve().parent
    assert home.is_relative_to(ROOT / "build" / "wheel"), f"{home} is not the wheel"
    missing = [name for name in (*WANTED, *SOURCES) if not (home / name).is_file()]
    assert not missing, f"the wheel lacks {missing}"
    assert not (home.parent / "tests").exists(), "the wheel brings the tests"
    print(f"the sdist has {files_of_sdist()}, the wheel {size(ROOT.glob('dist/*.whl'))}")
    with tempfile.TemporaryDirectory() as folder:
        use(Path(folder), prebuilt=bool(list((home / "ops/compiled").glob(f"{family()}*/*.so"))))


def use(folder: Path, *, prebuilt: bool) -> None:
    """The command in another folder, with an empty home and nothing to be found on PATH."""

    def run(*words: str) -> str:
        place = {"PATH": str(folder), "HOME": str(folder), "DAPE_CACHE": str(folder / "cache"), "COLUMNS": "80"}
        done = subprocess.run([COMMAND, *words], cwd=folder, env=place, capture_output=True, text=True)
        assert done.returncode == 0, (words, done.returncode, done.stdout, done.stderr)
        assert not prebuilt or "kernel is not available" not in done.stderr, done.stderr
        return done.stdout

    assert "dape-kerple" in run("list")
    assert "nothing was run" in run("reproduce", "bias-ablation", "--scale", "paper", "--data", "x", "--dry-run")
    said = " ".join(run("doctor").split())
    assert "no C++ compiler found" in said
    if prebuilt:
        assert "prebuilt for" in said and "fused, lag tables" in said and "fused 7 of 7 agree" in said, said
        used = said.partition("prebuilt for ")[2].partition(":")[0]
        print(f"dape doctor: the kernel is prebuilt for {used}; no compiler")
    else:
        print(f"no kernel for {family()} in this wheel: attention runs in torch's operations")
    (folder / "words.txt").write_text(" ".join(f"word{n % 7} and {n % 13}" for n in range(3000)))
    run("compare", "--data", "words.txt", "--methods", "alibi", "dape-alibi", "--out", "out", *SMALL)
    run("report", "out")
    assert (folder / "out" / "report.html").stat().st_size > 100_000
    assert not list(folder.glob("cache/kernels/*")), "something was compiled"
    print(f"{COMMAND} works: list, reproduce, doctor, compare, report")


def family() -> str:
    """How the names of targets begin that are for this machine."""
    return {"x86_64": "x86-64"}.get(platform.machine(), platform.machine())


def files_of_sdist() -> str:
    import tarfile

    (archive,) = ROOT.glob("dist/*.tar.gz")
    with tarfile.open(archive) as opened:
        names = [Path(*Path(name).parts[1:]) for name in opened.getnames()]
    top = sorted({name.parts[0] for name in names})
    extra = {"tests", "results", "docs", "runs", "build", ".venv"} & set(top)
    assert not extra, f"the sdist brings {extra}"
    return f"{len(names)} files ({', '.join(top)}), {size([archive])}"


def size(files) -> str:
    return f"{sum(os.path.getsize(file) for file in files) / 1e6:.1f} MB"


if __name__ == "__main__":
    main()
