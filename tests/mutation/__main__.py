"""`make mutants N=150`: change one thing in the code and see whether a test fails. What survives is a missing test.

Mutants are drawn with a seed and applied in a temporary copy of ``src``, one after the other. Each runs the tests of
:func:`stages` in forks of this process, which has torch loaded, until one fails. A mutant is killed by a failing test,
or by using several times the processor seconds that its tests need without it (clocks of busy machines say little).
``equivalent.txt`` has the mutants that no test can tell from the code, each with the reason.
"""

import argparse
import importlib
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.mutation.operators import Mutant, mutants

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
PACKAGES = {
    "positional": "positional/*.py",
    "ops": "ops/attention/**/*.py",
    "statistics": "evaluation/statistics.py",
}
LOADED = ("torch", "torch._dynamo", "scipy.stats", "jaxtyping", "hypothesis", "yaml")
SPARE_SECONDS, WALL = 15, 40
"""Of the processor beyond three times the usual; and how many times longer the clock may take."""

POSITIONAL, OPS = "tests/positional/test_", "tests/ops/attention/test_"
NEAR = {
    "dape": ["dape", "dape_v2", "wrapped", "golden_dape"],
    "layers": ["dape", "dape_v2", "wrapped", "fire"],
    "describe": ["catalogue"],
    "randomized": ["randomized", "golden_deepmind"],
}
OF_ALL_ENCODINGS = ("base", "grid", "positions", "dape", "layers", "randomized", "build")


def stages(path: str) -> list[list[str]]:
    """Arguments of pytest, the nearest tests first."""
    folder, stem = path.rsplit("/", 1)[0], Path(path).stem
    if folder == "evaluation":
        return [["tests/evaluation/test_statistics.py"]]
    if folder == "positional":
        near = _existing(POSITIONAL, NEAR.get(stem, [stem]))
        names = [] if stem in OF_ALL_ENCODINGS else ["-k", stem.replace("_", "-")]
        everything = sorted(set(_existing(POSITIONAL, ["*"])) - {f"{POSITIONAL}conformance.py", *near})
        wide = [f"{OPS}operator.py", f"{OPS}equivalence.py"] if stem in OF_ALL_ENCODINGS else []
        return [near, [f"{POSITIONAL}conformance.py", *names], [*everything, *wide]]
    if "triton" in path:
        return [["tests/ops/attention/triton_interpreted.py"], [f"{OPS}triton.py"]]
    near = _existing(OPS, ["fused_build", "parallel"] if "fused" in path else [stem])
    return [[*near, f"{OPS}equivalence.py"], sorted(set(_existing(OPS, ["*"])) - {*near, f"{OPS}triton.py"})]


def _existing(prefix: str, names: list[str]) -> list[str]:
    return [str(path.relative_to(ROOT)) for name in names for path in sorted(ROOT.glob(f"{prefix}{name}.py"))]


class Verdict:
    """A plugin of pytest that tells the parent process which test failed first."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tell(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._tell(report)

    def _tell(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            os.write(self.pipe, f"{report.nodeid}\n".encode())


def run(arguments: list[str], seconds: float | None = None) -> tuple[str | None, float]:
    """The first test that fails, if one does, and the processor seconds that went by."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.setsid()
            if seconds is not None:
                resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
            if any("triton_interpreted" in argument for argument in arguments):
                os.environ["TRITON_INTERPRET"] = "1"
            silence = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(silence, stream)
            options = [
                "-x",
                "-q",
                "-n",
                "0",
                "-p",
                "no:cacheprovider",
                "--tb=no",
                "-W",
                "ignore:Module already imported",
            ]
            os._exit(pytest.main([*options, *arguments], plugins=[Verdict(writing)]))
        finally:
            os._exit(99)  # never back into the parent's code
    os.close(writing)
    begin = time.monotonic()
    while not (done := os.wait4(pid, os.WNOHANG))[0]:
        time.sleep(0.05)
        if seconds is not None and time.monotonic() - begin > WALL * seconds:
            os.killpg(pid, signal.SIGKILL)
    with os.fdopen(reading) as told:
        first = told.readline().strip()
    code, used = os.waitstatus_to_exitcode(done[1]), done[2].ru_utime + done[2].ru_stime
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        first = "the time limit"
    return first or (f"exit code {code}" if code else None), used


class Bench:
    """A copy of the sources that tests import, and what the tests cost without a mutant."""

    def __init__(self, copy: Path) -> None:
        self.copy, self.usual = copy, {}
        shutil.copytree(ROOT / "src", copy, dirs_exist_ok=True)
        sys.path.insert(0, str(copy))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(copy), str(ROOT)])

    def killer(self, mutant: Mutant) -> str | None:
        """The test that tells the mutant from the code."""
        limits = [self.usual_seconds(arguments) * 3 + SPARE_SECONDS for arguments in stages(mutant.path)]
        file = self.copy / "dape" / mutant.path
        original = file.read_text()
        file.write_text(mutant.source())
        try:
            found = (run(stage, limit)[0] for stage, limit in zip(stages(mutant.path), limits, strict=True))
            return next((test for test in found if test), None)
        finally:
            file.write_text(original)

    def usual_seconds(self, arguments: list[str]) -> float:
        key = tuple(arguments)
        if key not in self.usual:
            failed, self.usual[key] = run(arguments)
            if failed:
                sys.exit(f"without any mutant, {failed} fails")
            print(f"# {self.usual[key]:.0f} s: {' '.join(arguments)}", flush=True)
        return self.usual[key]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("-n", type=int, default=50, help="mutants of each package")
    parser.add_argument("--packages", nargs="+", choices=list(PACKAGES), default=list(PACKAGES))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", default="", help="of the drawn ones, those whose line in the log has this text")
    given = parser.parse_args()
    print(f"# -n {given.n} --seed {given.seed}", flush=True)
    for name in LOADED:
        importlib.import_module(name)
    reasons = dict(line.split("  # ", 1) for line in EQUIVALENT.read_text().splitlines() if "  # " in line)
    missing = 0
    with tempfile.TemporaryDirectory(prefix="dape-mutants-") as folder:
        bench, score = Bench(Path(folder).resolve()), []
        for package in given.packages:
            counts = Counter()
            for mutant in drawn(package, given.n, given.seed, given.only):
                test = bench.killer(mutant)
                reason = reasons.get(mutant.name)
                verdict = f"killed by {test}" if test else f"equivalent: {reason}" if reason else "SURVIVED"
                counts[verdict.split()[0].rstrip(":")] += 1
                where = f"{mutant.path}:{mutant.line} {mutant.function}"
                print(f"{where} {mutant.operator}: {mutant.change}  {verdict}", flush=True)
            missing += counts["SURVIVED"]
            total = counts.total()
            killed, others = counts["killed"], total - counts["equivalent"]
            score.append(
                f"# {package}: {killed} of {total} killed ({killed / max(1, total):.1%}); {counts['equivalent']}"
                f" equivalent, {counts['SURVIVED']} survived; {killed / max(1, others):.1%} of those that can be"
            )
    print("\n".join(score))
    return 1 if missing else 0


def drawn(package: str, n: int, seed: int, only: str) -> list[Mutant]:
    source = ROOT / "src" / "dape"
    files = sorted(path.relative_to(source).as_posix() for path in source.glob(PACKAGES[package]))
    every = [mutant for file in files for mutant in mutants(file, (source / file).read_text())]
    chosen = random.Random(f"{seed} {package}").sample(every, min(n, len(every)))
    chosen.sort(key=lambda mutant: (mutant.path, mutant.line))
    return [m for m in chosen if only in f"{m.path}:{m.line} {m.function} {m.operator}: {m.change}"]


if __name__ == "__main__":
    sys.exit(main())
