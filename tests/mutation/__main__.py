"""`make mutants N=150`: change one thing in the code and see whether a test fails. What survives is a missing test.

Mutants are drawn with a seed and applied in a temporary copy of ``src``, one after the other. Each runs the tests of
:func:`stages` in forks of this process, which has torch loaded, until one fails. A mutant is killed by a failing test,
or by a test that takes :data:`SECONDS` of the processor. A test that kills must pass without the mutant.
``equivalent.txt`` has the mutants that no test can tell from the code, each with the reason.
"""

import argparse
import gc
import importlib
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from tests.mutation.operators import Mutant, mutants

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
PACKAGES = {
    "positional": "positional/*.py",
    "ops": "ops/attention/**/*.py",
    "triton": "ops/attention/triton_kernels/*.py",
    "statistics": "results/statistics.py",
}
LOADED = ("torch", "torch._dynamo", "scipy.stats", "jaxtyping", "hypothesis", "yaml")
SECONDS, LONGEST = 20, 3600
"""Of the processor for a test, and of the clock for all: a mutant may loop, or wait, for ever."""

POSITIONAL, OPS = "tests/positional/test_", "tests/ops/attention/test_"
NEAR = {
    "base": ["base", "build", "wrapped"],
    "dape": ["dape", "dape_v2", "wrapped", "golden_dape"],
    "describe": ["catalogue"],
    "layers": ["dape", "dape_v2", "wrapped", "fire"],
    "rope": ["rope", "yarn"],
    "randomized": ["randomized", "golden_deepmind"],
    "transformer_xl": ["transformer_xl", "golden_deepmind"],
    "cpp": ["memory", "fused_build"],
    "operator": ["operator", "memory"],
    "check": ["operator"],
    "reference": ["operator"],
    "row_blocks": ["operator"],
    "available": ["fused_build"],
    "library": ["fused_build"],
}
"""Where tests are not in the file of the module's name."""
FOR_ALL = (
    *("base", "grid", "positions", "angles", "layers", "dape", "gated", "randomized"),
    *("build", "catalogue", "describe", "names"),
)
"""Modules that are not one encoding; a few encodings then stand for all."""


def stages(path: str) -> list[list[str]]:
    """Arguments of pytest, nearest tests first. A module's own tests should notice, so others are not asked."""
    folder, stem = path.rsplit("/", 1)[0], Path(path).stem
    if folder == "results":
        return [["tests/results/test_statistics.py"]]
    if "triton" in path:
        return [["tests/ops/attention/triton_interpreted.py"], [f"{OPS}triton.py"]]
    if folder == "positional":
        names = "kerple-power or dape-fire or learned" if stem in FOR_ALL else stem.replace("_", "-")
        return [_existing(POSITIONAL, NEAR.get(stem, [stem])), [f"{POSITIONAL}conformance.py", "-k", names]]
    near = _existing(OPS, NEAR.get(stem, [stem]))
    few, more = (
        ("compiled_square[dape", "compiled_rows or compiled_any")
        if "fused" in path or stem == "cpp"
        else ("test_square[dape", "items")
    )
    if stem == "row_blocks":
        few = "test_square[cope or test_square[transformer-xl or rows_before_the_first_key"
    situations = f"{more} or situations[dape-fire or situations[dape-kerple"
    asked = ([f"{OPS}equivalence.py", "-k", names] for names in (few, situations))
    return [stage for stage in (next(asked), near, next(asked)) if stage]


def _existing(prefix: str, names: list[str]) -> list[str]:
    return [str(path.relative_to(ROOT)) for name in names for path in sorted(ROOT.glob(f"{prefix}{name}.py"))]


Tell = Callable[[str], None]


def forked(work: Callable[[Tell], int], longest: float = math.inf) -> str | None:
    """Work in a process of its own; None if it went well, else the first thing it told."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.setsid()
            silence = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(silence, stream)
            os._exit(work(lambda text: os.write(writing, f"{text}\n".encode()) and None))
        finally:
            os._exit(99)  # never back into the parent's code
    os.close(writing)
    begin = time.monotonic()
    while not (done := os.waitpid(pid, os.WNOHANG))[0]:
        time.sleep(0.02)
        if time.monotonic() - begin > longest:
            os.killpg(pid, signal.SIGKILL)
    with os.fdopen(reading) as told:
        first = told.readline().strip()
    code = os.waitstatus_to_exitcode(done[1])
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        first = "the time limit"
    return first or (f"exit code {code}" if code else None)


class FirstFailure:
    """A plugin of pytest that tells which test failed, and ends the process there."""

    tell: Tell | None = None

    def pytest_runtest_logstart(self) -> None:
        limit, used = resource.getrlimit(resource.RLIMIT_CPU)[1], math.ceil(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (used + SECONDS, limit))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.tell is not None:
            self.tell(report.nodeid)
            os._exit(1)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self.tell is not None:
            self.tell(report.nodeid)


OPTIONS = ["-x", "-q", "-s", "-n", "0", "-p", "no:cacheprovider", "-W", "ignore:Module already imported"]


class Bench:
    """A copy of the sources, which tests import."""

    def __init__(self, copy: Path, killers: Mapping[str, str]) -> None:
        self.copy, self.sound, self.killers = copy, set(), killers
        shutil.copytree(ROOT / "src", copy, dirs_exist_ok=True)
        sys.path.insert(0, str(copy))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(copy), str(ROOT)])

    def check(self, test: str | None, alone: Callable[[Tell], int]) -> None:
        """A test that fails without the mutant kills nothing."""
        if test and "::" in test and test not in self.sound:
            if failed := forked(alone):
                raise RuntimeError(f"without any mutant, {failed}")
            self.sound.add(test)

    def afresh(self, mutant: Mutant) -> str | None:
        """The test that tells the mutant from the code, everything imported anew."""
        file = self.copy / "dape" / mutant.path
        original = file.read_text()
        file.write_text(mutant.source())
        try:
            before = self.killers.get(mutant.name)
            killer = before and forked(partial(_pytest, [before]), LONGEST)
            if not killer or "::" not in killer:  # that test may be gone, which is an exit code
                found = (forked(partial(_pytest, stage), LONGEST) for stage in stages(mutant.path))
                killer = next((test for test in found if test), None)
        finally:
            file.write_text(original)
        self.check(killer, partial(_pytest, [killer or ""]))
        return killer

    def exchanged(self, given: Sequence[Mutant], verdicts: Path) -> None:
        """Ask tests that were collected once, with the code of functions exchanged; killers go to a file."""
        files = {file for mutant in given for stage in stages(mutant.path) for file in stage if file.endswith(".py")}

        def work(_: Tell) -> int:
            return int(pytest.main([*OPTIONS, *sorted(files)], plugins=[_Exchange(self, given, verdicts)]))

        if failed := forked(work):
            print(f"# exchanging code ended early: {failed}", flush=True)


def _pytest(arguments: list[str], tell: Tell) -> int:
    if any("triton_interpreted" in argument for argument in arguments):
        os.environ["TRITON_INTERPRET"] = "1"
    plugin = FirstFailure()
    plugin.tell = tell
    return int(pytest.main([*OPTIONS, *arguments], plugins=[plugin]))


class _Exchange(FirstFailure):
    def __init__(self, bench: Bench, given: Sequence[Mutant], verdicts: Path) -> None:
        self.bench, self.given, self.verdicts = bench, given, verdicts

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        # isinstance would ask proxies, which answer with warnings.
        functions = [x for x in gc.get_objects() if type(x) is FunctionType]
        for place, mutant in enumerate(self.given):
            items = [i for stage in stages(mutant.path) for i in session.items if _asked(i, stage)]
            items.sort(key=lambda item: item.nodeid != self.bench.killers.get(mutant.name))
            killer = forked(partial(self._run, items, mutant, functions), LONGEST)
            if killer != "exit code 99":
                self.bench.check(killer, partial(self._run, [i for i in items if i.nodeid == killer], None, []))
                with self.verdicts.open("a") as file:
                    file.write(json.dumps([place, killer]) + "\n")
        return True

    def _run(self, items: list[pytest.Item], mutant: Mutant | None, functions: list[FunctionType], tell: Tell) -> int:
        self.tell = tell
        if mutant is not None:
            exchange(functions, self.bench.copy / "dape" / mutant.path, mutant)
        for item, after in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        return 0


def _asked(item: pytest.Item, stage: list[str]) -> bool:
    file, name = item.nodeid.split("::", 1)
    words = stage[stage.index("-k") + 1].split(" or ") if "-k" in stage else [""]
    return file in stage and any(word in name for word in words)


def exchange(functions: list[FunctionType], file: Path, mutant: Mutant) -> None:
    """Give the mutant's code to the function it is in, and to those around it."""

    def affected(code: CodeType) -> str:
        name = code.co_qualname.replace(".<locals>", "")
        return name if f"{mutant.function}.".startswith(f"{name}.") else ""

    def inner(code: CodeType) -> Iterator[CodeType]:
        for each in code.co_consts:
            if isinstance(each, CodeType):
                yield each
                yield from inner(each)

    found = [(name, code) for code in inner(compile(mutant.source(), str(file), "exec")) if (name := affected(code))]
    codes = dict(found)
    live = [f for f in functions if f.__code__.co_filename == str(file) and affected(f.__code__)]
    if len(codes) < len(found) or not live:
        raise LookupError(f"{mutant.function} has no code of its own, or more than one")
    for function in live:
        function.__code__ = codes[affected(function.__code__)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("-n", type=int, default=50, help="mutants of each package")
    usual = [name for name in PACKAGES if name != "triton"]  # interpreted kernels take a minute for each mutant
    parser.add_argument("--packages", nargs="+", choices=list(PACKAGES), default=usual)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--before", type=Path, nargs="+", default=[], help="logs: what killed a mutant is asked first")
    parser.add_argument("--only", nargs="+", default=[""], help="of the drawn ones, those that have one of these texts")
    given = parser.parse_args()
    print(f"# -n {given.n} --seed {given.seed}", flush=True)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as in tests/conftest.py, which comes after torch here
    for name in LOADED:
        importlib.import_module(name)
    chosen = {package: drawn(package, given.n, given.seed, given.only) for package in given.packages}
    with tempfile.TemporaryDirectory(prefix="dape-mutants-") as folder:
        killers = dict(pair for log in given.before for pair in killed_before(log.read_text()))
        scores = [judge(package, own, Path(folder).resolve() / package, killers) for package, own in chosen.items()]
    print("\n".join(text for _, text in scores))
    return 1 if any(survived for survived, _ in scores) else 0


def killed_before(log: str) -> Iterator[tuple[str, str]]:
    """The name of each mutant that a log has as killed, and the test that did it."""
    for line in log.splitlines():
        mutant, found, test = line.partition("  killed by ")
        if found and "::" in test:
            place, _, change = mutant.partition(": ")
            path, function, _ = place.split(" ", 2)
            yield f"{path.rsplit(':', 1)[0]} {function}: {change}", test


def judge(package: str, chosen: list[Mutant], folder: Path, killers: Mapping[str, str]) -> tuple[int, str]:
    """How many survived without a reason, and the score in words."""
    reasons = dict(line.split("  # ", 1) for line in EQUIVALENT.read_text().splitlines() if "  # " in line)
    bench, verdicts = Bench(folder, killers), folder / "verdicts"
    verdicts.touch()
    exchangeable = [m for m in chosen if m.inside and "triton" not in m.path and m.name not in reasons]
    bench.exchanged(exchangeable, verdicts)
    known = {id(exchangeable[place]): test for place, test in map(json.loads, verdicts.read_text().splitlines())}
    counts = Counter()
    for mutant in chosen:
        if reason := reasons.get(mutant.name):  # it was run when the reason was found
            verdict = f"equivalent: {reason}"
        else:
            test = known[id(mutant)] if id(mutant) in known else bench.afresh(mutant)
            verdict = f"killed by {test}" if test else "SURVIVED"
        counts[verdict.split()[0].rstrip(":")] += 1
        print(f"{mutant}  {verdict}", flush=True)
    total, killed, equivalent = counts.total(), counts["killed"], counts["equivalent"]
    return counts["SURVIVED"], (
        f"# {package}: {killed} of {total} killed ({killed / max(1, total):.1%}), {equivalent} equivalent, "
        f"{counts['SURVIVED']} survived; {killed / max(1, total - equivalent):.1%} of those that are not equivalent"
    )


def drawn(package: str, n: int, seed: int, only: Sequence[str]) -> list[Mutant]:
    source = ROOT / "src" / "dape"
    files = sorted(path.relative_to(source).as_posix() for path in source.glob(PACKAGES[package]))
    files = [file for file in files if package == "triton" or "triton" not in file]
    every = [mutant for file in files for mutant in mutants(file, (source / file).read_text())]
    chosen = random.Random(f"{seed} {package}").sample(every, min(n, len(every)))
    chosen.sort(key=lambda mutant: (mutant.path, mutant.line))
    return [m for m in chosen if any(text in str(m) for text in only)]


if __name__ == "__main__":
    sys.exit(main())
