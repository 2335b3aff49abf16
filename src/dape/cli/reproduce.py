"""``dape reproduce``: an experiment of the paper, its numbers beside ours, and what became of its claims."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from dape.cli.console import open_console
from dape.errors import UsageError
from dape.experiments.reproduce import scales
from dape.experiments.reproduce.catalogue import EXPERIMENTS, PaperExperiment, find
from dape.experiments.reproduce.scales import Scale, ScaleName
from dape.files import check_writable_folder

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
    """smoke: does it run, in two minutes. cpu: about an hour on two cores. night: 8 million tokens a run, hours on two
    cores. gpu: hours on a GPU. paper: as published."""
    tokens: float | None = None
    """Tokens that each run sees, in place of the scale's; for a ladder, one --out for each number."""
    size: Literal["125m", "350m", "2.7b", "6.7b"] | None = None
    """Model size in place of the experiment's, as the scale has it; for a ladder, one --out for each size."""
    seeds: int | None = None
    """Runs of each kind, with seeds 0, 1, ...; by default as in the paper."""
    budget: float | None = None
    """Hours that it may take on this machine: a few steps are timed, then seeds and steps are cut to fit, and what was
    cut is said. A folder keeps the plan it was begun with."""
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
    experiment, scale = chosen(config)
    rung = (config.size, None if config.tokens is None else f"{config.tokens:g}-tokens")
    out = config.out or Path("runs/reproduce") / "-".join([experiment.id, scale.name, *filter(None, rung)])
    check(config, out)
    if config.dry_run:
        return dry_run(config, experiment, scale)
    from dape.cli import reproduce_che, reproduce_runs, reproduce_time

    runners = {"che": reproduce_che.run, "time": reproduce_time.run}
    return runners.get(experiment.kind, reproduce_runs.run)(config, out, experiment, scale)


def chosen(config: Reproduce) -> tuple[PaperExperiment, Scale]:
    """The experiment at the scale, with what the flags change in both."""
    experiment, scale = find(config.id), scales.find(config.scale)
    for name in ("tokens", "size", "budget"):
        if experiment.kind != "language" and getattr(config, name) is not None:
            raise UsageError(f"--{name} is for experiments that train language models; {experiment.id} is not one")
    if config.budget is not None and not 0 < config.budget < 1e5:
        raise UsageError(f"--budget must be a number of hours above 0, got {config.budget:g}")
    if config.budget is not None and config.tokens is not None:
        raise UsageError("--budget decides the number of tokens; leave --tokens out")
    if config.size:
        experiment = replace(experiment, sizes=(config.size,))
    if config.tokens is not None:
        if not 1 <= config.tokens < 1e15:
            raise UsageError(f"--tokens must be a number from 1 on, got {config.tokens:g}")
        if scale.tokens is None:
            raise UsageError(f"--tokens: scale {scale.name} takes its steps from the paper; choose another --scale")
        scale = scale.with_tokens(int(config.tokens))
    return experiment, scale


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
    from dape.experiments.grid import saved_settings
    from dape.experiments.reproduce.plan import SETTINGS

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


def dry_run(config: Reproduce, experiment: PaperExperiment, scale: Scale) -> int:
    """Runs, operations, hours and memory; nothing is created."""
    from dape.experiments.reproduce.cost import cost_of

    cost = cost_of(experiment, scale, seeds=config.seeds or experiment.seeds)
    print(f"{experiment.id}: {experiment.title} ({experiment.where} of the paper), scale {scale.name}")
    for words in cost.lines():
        print(words)
    print("nothing was run")
    return 0
