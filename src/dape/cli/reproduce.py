"""``dape reproduce``: an experiment of the paper, its numbers beside ours, and what became of its claims."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dape.cli.console import open_console
from dape.errors import UsageError
from dape.files import check_writable_folder
from dape.reproduce import scales
from dape.reproduce.catalogue import EXPERIMENTS, Experiment, find
from dape.reproduce.scales import Scale, ScaleName

if TYPE_CHECKING:
    pass

LIST = "list"


@dataclass(frozen=True, kw_only=True)
class Reproduce:
    """Repeat an experiment of the paper, at its scale or a smaller one, and judge its claims.

    Trains whatever the experiment compares, under the same conditions, evaluates it, and puts the paper's numbers
    beside ours. Writes results.jsonl, tables.md, figures, claims.md and claims.json into --out. What is finished is not
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
    out = config.out or Path("runs/reproduce") / f"{experiment.id}-{scale.name}"
    check(config, out)
    if config.dry_run:
        return dry_run(config, experiment, scale)
    from dape.cli import reproduce_che, reproduce_runs, reproduce_time

    runners = {"che": reproduce_che.run, "time": reproduce_time.run}
    return runners.get(experiment.kind, reproduce_runs.run)(config, out, experiment, scale)


def list_experiments() -> int:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("id", "in the paper", "what is varied", "runs", "paper's corpus"):
        table.add_column(name)
    for e in EXPERIMENTS.values():
        table.add_row(e.id, e.where, e.title, str(e.runs), e.data)
    open_console().print(table)
    print()
    for scale in scales.SCALES.values():
        print(f"--scale {scale.name:6} {scale.cost}")
    return 0


def check(config: Reproduce, out: Path) -> None:
    for name in ("seeds", "jobs"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} must be at least 1, got {value}")
    check_writable_folder(out, "--out")
    from dape.reproduce.plan import SETTINGS
    from dape.sweep.grid import saved_settings

    holds = saved_settings(out, SETTINGS)
    if holds and (holds.get("experiment"), holds.get("scale")) != (config.id, config.scale):
        raise UsageError(
            f"--out {out} holds another experiment: {holds.get('experiment')} at scale {holds.get('scale')}, not "
            f"{config.id} at scale {config.scale}; choose another folder"
        )
    if config.resume and not (out / SETTINGS).is_file():
        raise UsageError(f"--resume --out {out}: there is nothing to continue (no {SETTINGS} in it)")
    for folder in config.reuse:
        if not (folder / SETTINGS).is_file():
            raise UsageError(f"--reuse {folder}: holds no reproduction (no {SETTINGS} in it)")


# What it would take --------------------------------------------------------------------------------------------------


def dry_run(config: Reproduce, experiment: Experiment, scale: Scale) -> int:
    """Runs, operations, hours and memory; nothing is created."""
    from dape.reproduce.cost import cost_of

    cost = cost_of(experiment, scale, seeds=config.seeds or experiment.seeds)
    print(f"{experiment.id}: {experiment.title} ({experiment.where} of the paper), scale {scale.name}")
    for words in cost.lines():
        print(words)
    print("nothing was run")
    return 0
