"""``dape bench compare OLD NEW``: attention of two commits, in turns. Does not import torch.

Each commit gets a work tree in a temporary folder. Processes that use the package of one of them time the same calls,
one process after the other. Reported are times relative to PyTorch's attention in the same process: other load on the
machine slows both.
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from dape.bench.attention import Pass
from dape.bench.options import WithFile, check_common
from dape.bench.records import Column, Record, Results, Spread, count, make_table, spread, text, with_range
from dape.bench.runner import NotMeasuredError, Once, Part, Plan, command
from dape.errors import UsageError
from dape.machine import usable_cores

if TYPE_CHECKING:
    from rich.table import Table

WORKER = Path(__file__).with_name("compare_worker.py")


@dataclass(frozen=True, kw_only=True)
class CompareBench(WithFile):
    """Attention of two commits of this repository, timed in turns.

    Processes with the package of either commit follow each other (old, new, new, old, ...). Each times every encoding,
    and PyTorch's attention without positions. The table shows times relative to PyTorch's, and the ratio of new to old:
    medians over processes, with interquartile ranges.
    """

    old: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OLD")]
    """A commit, branch or tag."""
    new: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NEW")] = "HEAD"
    """Another one."""
    encodings: tuple[str, ...] = ("kerple", "fire", "dape-kerple", "dape-fire")
    """Positional encodings that both commits know."""
    length: int = 2048
    """Tokens."""
    passes: tuple[Pass, ...] = ("forward", "forward_backward")
    """Forward without gradients, and forward followed by the gradients of q, k, v and all parameters."""
    batch: int = 1
    """Sequences per call."""
    heads: int = 12
    """Attention heads."""
    head_dim: int = 64
    """Width of one head."""
    hidden: int = 32
    """Hidden units of DAPE's f."""
    turns: int = 4
    """Processes of each commit."""
    repeats: int = 3
    """Timed repetitions of each call in a process. The fastest counts."""
    threads: int | None = None
    """Threads of torch; None: one for each core."""
    repository: Path = Path()
    """Where the commits are: a clone of dape."""
    append: Path | None = None
    """Also append the results to this file, one line of JSON for each, with machine, versions and commit."""
    seed: int = 0
    """Seed of inputs and parameters."""


def run(config: CompareBench) -> int:
    """Returns the exit code: 1 if a commit cannot be timed, 130 if interrupted."""
    check_common(
        config, "batch", "heads", "head_dim", "hidden", "length", "turns", "repeats", "threads", names="encodings"
    )
    commits = {name: _commit(config.repository, getattr(config, name)) for name in ("old", "new")}
    with (
        _tidy_when_ended(),
        tempfile.TemporaryDirectory(prefix="dape-compare-") as folder,
        contextlib.ExitStack() as stack,
    ):
        trees = {
            name: stack.enter_context(_work_tree(config.repository, commit, Path(folder) / name))
            for name, commit in commits.items()
        }
        return command(config, lambda threads: _plan(config, trees, commits), tables)


@contextlib.contextmanager
def _tidy_when_ended() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that no work tree is left behind."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _git(repository: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise UsageError("dape bench compare needs git, which is not installed") from error
    if done.returncode:
        raise UsageError(
            f"git {arguments[0]}: {done.stderr.strip() or 'failed'} (`repository` is {repository.resolve()})"
        )
    return done.stdout.strip()


def _commit(repository: Path, revision: str) -> str:
    return _git(repository, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")


@contextlib.contextmanager
def _work_tree(repository: Path, commit: str, folder: Path) -> Iterator[Path]:
    _git(repository, "worktree", "add", "--detach", str(folder), commit)
    try:
        if not (folder / "src/dape").is_dir():
            raise UsageError(f"{commit[:12]} has no src/dape: `repository` is not a clone of dape")
        yield folder
    finally:
        _git(repository, "worktree", "remove", "--force", str(folder))


def _plan(config: CompareBench, trees: dict[str, Path], commits: dict[str, str]) -> Plan:
    return Plan(parts=_parts(config, trees), steps=2 * config.turns, settings={"commits": commits})


def _parts(config: CompareBench, trees: dict[str, Path]) -> Iterator[Part]:
    found: dict[str, list[Any]] = {"old": [], "new": []}
    for turn in range(config.turns):
        for name in ("old", "new") if turn % 2 == 0 else ("new", "old"):
            do = partial(_turn, config, trees[name], found, name)
            yield Once(what=f"turn {turn + 1} of {config.turns}: {name}", do=do)


def _turn(config: CompareBench, tree: Path, found: dict[str, list[Any]], name: str) -> list[Record]:
    """Time one process and add its seconds to ``found``. Returns the records after the last turn, else none."""
    names = ("encodings", "length", "passes", "batch", "heads", "head_dim", "hidden", "repeats", "seed")
    asked = {**{n: getattr(config, n) for n in names}, "threads": config.threads or usable_cores()}
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    done = subprocess.run(
        [sys.executable, str(WORKER), json.dumps(asked)], env=environment, cwd=tree, capture_output=True, text=True
    )
    if done.returncode:
        reason = (done.stderr.strip() or "no message").splitlines()[-1]
        raise NotMeasuredError(f"dape bench compare: the {name} commit could not be timed: {reason}")
    answer = json.loads(done.stdout.splitlines()[-1])
    if not Path(answer["package"]).is_relative_to(tree):
        raise NotMeasuredError(f"dape bench compare: the {name} commit was not used, but {answer['package']}")
    found[name].append(answer["seconds"])
    return _records(config, found) if all(len(turns) == config.turns for turns in found.values()) else []


def _records(config: CompareBench, found: dict[str, list[Any]]) -> list[Record]:
    def ratios(name: str, pass_: str, encoding: str) -> list[float]:
        """For each process, its fastest time divided by the fastest of PyTorch's attention."""
        return [min(turn[pass_][encoding]) / min(turn[pass_]["sdpa"]) for turn in found[name]]

    records = []
    for pass_ in config.passes:
        for encoding in config.encodings:
            old, new = (ratios(name, pass_, encoding) for name in ("old", "new"))
            change = [n / o for o, n in zip(old, new, strict=True)]
            seconds = {name: statistics.median(min(turn[pass_][encoding]) for turn in found[name]) for name in found}
            records.append(
                {
                    "encoding": encoding,
                    "length": config.length,
                    "pass": pass_,
                    **{f"{name}_ms": 1000 * value for name, value in seconds.items()},
                    **spread("old_vs_sdpa", Spread.of(old)),
                    **spread("new_vs_sdpa", Spread.of(new)),
                    **spread("new_vs_old", Spread.of(change)),
                }
            )
    return records


CAPTION = (
    "x sdpa: time relative to PyTorch's attention in the same process; medians over processes (interquartile range)"
)


def tables(results: Results) -> "Iterator[Table]":
    if not results.records:
        return
    commits = {name: commit[:10] for name, commit in results.settings["commits"].items()}
    columns = [
        text("encoding"),
        Column("pass", lambda r: {"forward": "fwd"}.get(r["pass"], "f+b"), left=True),
        count("length"),
        Column("old x sdpa", lambda r: with_range(r, "old_vs_sdpa")),
        Column("new x sdpa", lambda r: with_range(r, "new_vs_sdpa")),
        Column("new / old", lambda r: with_range(r, "new_vs_old")),
    ]
    title = f"old {commits['old']}, new {commits['new']}"
    yield make_table(title, CAPTION, results.records, columns, ("pass",), narrow=True)
