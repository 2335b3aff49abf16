"""``dape reproduce``: an experiment of the paper, its numbers beside ours, and what became of its claims."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from dape.cli.checks import check_model, check_reach
from dape.cli.console import open_console
from dape.cli.live import LiveRuns, run_shown, side_by_side, tell_failures, threads_each
from dape.errors import UsageError
from dape.files import check_writable_folder, locked
from dape.reproduce import scales
from dape.reproduce.catalogue import EXPERIMENTS, Experiment, find
from dape.reproduce.scales import Scale, ScaleName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dape.evaluation.records import Row
    from dape.reproduce.judge import Judged
    from dape.reproduce.plan import Reproduction

LIST = "list"


@dataclass(frozen=True, kw_only=True)
class Reproduce:
    """Repeat an experiment of the paper, at its scale or a smaller one, and judge its claims.

    Trains whatever the experiment compares, under the same conditions, evaluates it, and puts the paper's numbers
    beside ours. Writes results.jsonl, table.md, figures, claims.md and claims.json into --out. What is finished is not
    done again: stop at any time and give the same command.
    """

    id: Annotated[str, tyro.conf.Positional] = LIST
    """An experiment; `list` shows them all."""
    scale: ScaleName = "smoke"
    """smoke: does it run, in two minutes. cpu: about an hour on two cores. gpu: hours on a GPU. paper: as published."""
    seeds: int | None = None
    """Runs of each kind, with seeds 0, 1, ...; by default as in the paper."""
    out: Path | None = None
    """Folder of the experiment; by default runs/reproduce/ID-SCALE."""
    data: str | None = None
    """Text, as for `dape compare`; scales gpu and paper have no default, as the paper's corpora cannot be shipped."""
    reuse: tuple[Path, ...] = ()
    """Folders of other reproductions: runs that they have finished with exactly these settings are taken over."""
    resume: bool = False
    """Insist on a folder that has been begun; without it, one is continued too if there is one."""
    dry_run: bool = False
    """Say what would be run and what it would cost, and do nothing."""
    jobs: int | None = None
    """Runs side by side; by default one per core, one on a GPU."""
    device: str = "auto"
    """Where to compute: cpu, cuda, ...; auto takes a GPU if there is one."""


def run(config: Reproduce) -> int:
    if config.id == LIST:
        return list_experiments()
    experiment, scale = find(config.id), scales.find(config.scale)
    config = replace(config, out=config.out or Path("runs/reproduce") / f"{experiment.id}-{scale.name}")
    check(config)
    return language(config, experiment, scale)


def list_experiments() -> int:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("id", "in the paper", "what is varied", "runs", "paper's corpus"):
        table.add_column(name)
    for e in EXPERIMENTS.values():
        count = len(e.arms) * len(e.sizes) * len(e.train_lengths) * e.seeds
        table.add_row(e.id, e.where, e.title, str(count or "140"), e.data)
    open_console().print(table)
    print()
    for scale in scales.SCALES.values():
        print(f"--scale {scale.name:6} {scale.cost}")
    return 0


def check(config: Reproduce) -> None:
    for name in ("seeds", "jobs"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} must be at least 1, got {value}")
    assert config.out is not None
    check_writable_folder(config.out, "--out")
    from dape.reproduce.plan import SETTINGS

    if config.resume and not (config.out / SETTINGS).is_file():
        raise UsageError(f"--resume --out {config.out}: there is nothing to continue (no {SETTINGS} in it)")
    for folder in config.reuse:
        if not (folder / SETTINGS).is_file():
            raise UsageError(f"--reuse {folder}: holds no reproduction (no {SETTINGS} in it)")


# Language models -----------------------------------------------------------------------------------------------------


def language(config: Reproduce, experiment: Experiment, scale: Scale) -> int:
    assert config.out is not None
    with locked(config.out):
        plan = _plan(config, experiment, scale)
        plan.begin()
        reused = plan.reuse(config.reuse)
        jobs = config.jobs or side_by_side(plan)
        _announce(plan, jobs, reused)
        failures = run_shown(plan, LivePanels, jobs=jobs, threads=threads_each(jobs))
        return _report(plan, failures)


def _plan(config: Reproduce, experiment: Experiment, scale: Scale) -> "Reproduction":
    """Everything that can be wrong is found here, before anything is trained."""
    from dape.cli.devices import use_device
    from dape.data.corpora import open_data
    from dape.reproduce.plan import Reproduction

    assert config.out is not None
    data = config.data or scale.data
    if not data:
        raise UsageError(
            f"--scale {scale.name} needs --data: the paper used {experiment.data}, which cannot be shipped. "
            "Make a folder of your own text with `dape prepare`"
        )
    device = str(use_device(config.device))
    corpus = open_data(data, out=config.out / "data")
    plan = Reproduction(
        out=config.out,
        experiment=experiment,
        scale=scale,
        seeds=config.seeds or experiment.seeds,
        data=str(corpus.folder.resolve()),
        data_name=corpus.name,
        data_hash=corpus.hash,
        device=device,
    )
    for run in plan.runs():
        check_model(plan.model(run))
        check_reach(plan.model(run), max(plan.effort(run).tests))
    return plan


def _announce(plan: "Reproduction", jobs: int, reused: int) -> None:
    experiment, runs = plan.experiment, plan.runs()
    done = sum(map(plan.finished, runs))
    finished = f", {done} of them already finished" if done else ""
    taken = f" ({reused} taken over)" if reused else ""
    print(f"{experiment.id}: {experiment.title} ({experiment.where} of the paper), scale {plan.scale.name}")
    print(f"{len(runs)} runs{finished}{taken}, {jobs} at a time, into {plan.out}; text: {plan.data_name}")
    for words in plan.scale.reductions(experiment):
        print(f"reduced: {words}")
    sys.stdout.flush()


class LivePanels(LiveRuns):
    """Perplexities, one table per model size and training length."""

    def _found(self, rows: "list[Row]") -> str:
        return "perplexity " + " ".join(f"{row.length}: {row.value:.4g}" for row in rows)

    def _tables(self) -> "Sequence[Any]":
        return _tables(self._plan, self._rows, self._console.width)


def _tables(plan: "Reproduction", rows: "list[Row]", width: int) -> list[Any]:
    """With a heading each."""
    from dape.report.reproduction import by_panel, title
    from dape.report.tables import terminal_table

    labels = [arm.label for arm in plan.experiment.arms]
    parts: list[Any] = []
    for panel, of_panel in by_panel(rows).items():
        parts += [f"\n{title(panel)}", terminal_table(of_panel, methods=labels, width=width)]
    return parts


def _report(plan: "Reproduction", failures: dict[str, str]) -> int:
    """Files first, then the terminal."""
    from dape.report import reproduction
    from dape.reproduce.judge import judge_all

    rows = plan.collect()
    tell_failures(failures)
    if not rows:
        return 1
    reduced = plan.scale.reductions(plan.experiment)
    judged = judge_all(plan.experiment, rows)
    written = reproduction.write_tables(plan.out, plan.experiment, rows, reduced)
    written += reproduction.write_figures(plan.out, plan.experiment, rows)
    written += reproduction.write_claims(plan.out, plan.experiment, judged, reduced)
    console = open_console()
    console.print(*_tables(plan, rows, console.width), sep="\n")
    _tell_claims(judged)
    print(f"wrote {', '.join(path.name for path in [plan.results, *written])} in {plan.out}")
    return 1 if failures else 0


def _tell_claims(judged: "Sequence[Judged]") -> None:
    print("\nThe paper's claims, here:")
    for each in judged:
        print(f"  {each.ours.verdict:23} {each.claim.statement}")
    print()
