"""``dape runs``: list, show, compare and clean runs. No torch here."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table
from rich.text import Text

from dape.actions.runs import FoundRun, differences, find_runs, open_run, remove, sizes, superfluous
from dape.cli.console import open_console
from dape.errors import UsageError
from dape.fitting import fitted, to_terminal
from dape.machine import in_words
from dape.report.terminal_curve import curve_lines
from dape.results.numbers import count

Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="[DIR]")]


@tyro.conf.configure(tyro.conf.FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class ListRuns:
    """List runs: encoding, seed, step, loss, state and size.

    `dape runs` is the same. The list includes the runs of comparisons and other experiments.
    """

    dir: Folder = Path("runs")
    """A folder with runs in it or some levels below."""
    json: bool = False
    """Print JSON instead of a table."""


@dataclass(frozen=True, kw_only=True)
class ShowRun:
    """Show a run: settings, curves of loss and perplexity, and file sizes."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""


@dataclass(frozen=True, kw_only=True)
class CompareRuns:
    """Compare existing runs: settings that differ, losses, and perplexity by length.

    To train runs and compare them, use `dape compare`.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")]
    """Folders of two or more runs."""


@tyro.conf.configure(tyro.conf.FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class CleanRuns:
    """Remove checkpoints that runs no longer need, after asking.

    Removes all checkpoints of a run but the newest, and files that interrupted saves have left behind. Every run can
    still be evaluated and continued. --weights also removes the newest checkpoint of finished runs of `dape compare`
    and other experiments: their results stay, their models are lost.
    """

    dir: Folder = Path("runs")
    """A folder with runs, or one run."""
    weights: bool = False
    """Also remove the models of finished runs whose results are saved. These models cannot be evaluated any more."""
    yes: bool = False
    """Remove without asking."""
    dry_run: bool = False
    """Only print what would be removed."""


def list_runs(config: ListRuns) -> int:
    runs = find_runs(config.dir)
    if config.json:
        print(json.dumps([_record(run) for run in runs], indent=2))
        return 0
    if not runs:
        print(f"{config.dir}: no runs")
        return 0
    console = open_console()
    table = _table("run", "encoding", "seed", "step", "loss", "state", "size")
    for run in runs:
        name = str(run.folder.relative_to(config.dir)) if run.folder != config.dir else run.folder.name
        table.add_row(Text(name, "cyan"), *_cells(run), in_words(run.size))
    console.print(*fitted(table, console.width), sep="\n")
    free = sum(each.size for each in superfluous(config.dir))
    clean = f"; `dape runs clean {config.dir}` would free {in_words(free)}" if free else ""
    print(f"{count(len(runs), 'run')}, {in_words(sum(run.size for run in runs))}{clean}")
    return 0


def _record(run: FoundRun) -> dict[str, object]:
    names = ("method", "seed", "step", "steps", "loss", "state", "size")
    return {"folder": str(run.folder), **{name: getattr(run, name) for name in names}}


def _cells(run: FoundRun) -> list[str]:
    steps = "" if run.steps is None else f"/{run.steps}"
    return [run.method, run.seed, f"{run.step}{steps}", "-" if run.loss is None else f"{run.loss:.4f}", run.state]


def _table(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:
        numeric = header in ("seed", "step", "loss", "size")
        table.add_column(header, justify="right" if numeric else "left", no_wrap=True)
    return table


def show_run(config: ShowRun) -> int:
    run = open_run(config.run)
    width = min(open_console().width, 100)
    print(f"{run.folder}: {', '.join([run.method, f'seed {run.seed}', run.state, in_words(run.size)])}")
    print("\nsettings")
    for name, value in run.settings.items():
        print(f"  {name:<28} {value}")
    for title, name in (("loss", "loss"), ("validation loss", "validation_loss")):
        points = [(line["step"], line[name]) for line in run.metrics if line.get(name) is not None]
        _print_curve(f"{title} by step", points, width, logarithmic=False)
    by_metric: dict[str, list[tuple[float, float]]] = {}
    for row in run.rows:
        by_metric.setdefault(row.metric, []).append((row.length, row.value))
    for metric, points in by_metric.items():
        _print_curve(f"{metric} by length", points, width, logarithmic=True)
    print("\nsizes")
    for name, size in sizes(run).items():
        print(f"  {name:<28} {in_words(size)}")
    return 0


def _print_curve(title: str, points: Sequence[tuple[float, float]], width: int, *, logarithmic: bool) -> None:
    if len(points) < 2:
        return
    print(f"\n{title}")
    x, y = zip(*points, strict=True)
    print("\n".join(curve_lines(x, y, width=width, logarithmic=logarithmic)))


def compare_runs(config: CompareRuns) -> int:
    if len(config.runs) < 2:
        given = ", ".join(map(str, config.runs)) or "RUN is missing"
        raise UsageError(f"{given}: give two runs or more to compare; `dape runs show RUN` shows a single one")
    runs = [open_run(path) for path in config.runs]
    console = open_console()
    names = [chr(ord("A") + n) if len(runs) <= 26 else str(n + 1) for n in range(len(runs))]
    for name, run in zip(names, runs, strict=True):
        print(f"{name}  {run.folder}")
    table = _table("", *names)
    for setting, values in differences(runs).items():
        table.add_row(setting, *("-" if value is None else str(value) for value in values))
    for title, cells in zip(("step", "loss", "state"), list(zip(*map(_cells, runs), strict=True))[2:], strict=True):
        table.add_row(title, *cells)
    lengths = sorted({(row.metric, row.length) for run in runs for row in run.rows})
    for metric, length in lengths:
        found = [[row.value for row in run.rows if (row.metric, row.length) == (metric, length)] for run in runs]
        table.add_row(f"{metric} at {length}", *(f"{values[-1]:.4g}" if values else "-" for values in found))
    console.print("", *fitted(table, console.width), sep="\n")
    return 0


def clean_runs(config: CleanRuns) -> int:
    doomed = superfluous(config.dir, weights=config.weights)
    if not doomed:
        print(f"{config.dir}: nothing to remove" + ("" if config.weights else "; --weights also removes models"))
        return 0
    for each in doomed:
        print(to_terminal(f"  {each.path}  {in_words(each.size)}, {each.why}", indent="    "))
    whole = f"{count(len(doomed), 'folder')}, {in_words(sum(each.size for each in doomed))}"
    if config.dry_run:
        print(f"{whole}; nothing was removed")
        return 0
    if not config.yes:
        if not sys.stdin.isatty():
            raise UsageError(f"{whole}: no terminal to ask on; add --yes to remove them, or --dry-run to look")
        if input(f"remove {whole}? [y/N] ").strip().lower() not in ("y", "yes"):
            print("nothing was removed")
            return 1
    print(f"removed {count(len(doomed), 'folder')}, freed {in_words(remove(doomed))}")
    return 0
