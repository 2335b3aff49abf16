"""``dape reproduce``: repeat an experiment of the paper and judge its claims."""

from dataclasses import dataclass, field
from typing import Annotated

import tyro

from dape.actions.reproduce import ReproduceOptions, check, chosen, folder_of, reproduce_with
from dape.cli.console import open_console
from dape.cli.show import show
from dape.experiments.executors import Where
from dape.experiments.reproduce import scales
from dape.experiments.reproduce.catalogue import EXPERIMENTS
from dape.fitting import to_terminal

LIST = "list"


@dataclass(frozen=True, kw_only=True)
class Reproduce(ReproduceOptions):
    """Repeat an experiment of the paper, at its scale or a smaller one, and judge its claims.

    Trains all models of the experiment under the same conditions, evaluates them, and puts the results beside the
    paper's numbers. Writes results.jsonl, tables.md, figures, claims.md and claims.json into --out. Finished runs are
    kept: stop at any time and give the same command to continue.
    """

    id: Annotated[str, tyro.conf.Positional] = LIST
    """An experiment of the paper; `list` shows all of them."""
    dry_run: bool = False
    """Only print what would be run and what it would cost."""
    where: tyro.conf.OmitArgPrefixes[Where] = field(default_factory=Where)


def run(config: Reproduce) -> int:
    if config.id == LIST:
        return list_experiments()
    return dry_run(config) if config.dry_run else show(reproduce_with(config, executor=config.where.build(config.jobs)))


def list_experiments() -> int:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("id", "in the paper", "what is varied", "runs", "paper's corpus"):
        table.add_column(name, no_wrap=name in ("id", "runs"))
    for e in EXPERIMENTS.values():
        table.add_row(e.id, e.where, e.title, str(e.runs), e.data)
    open_console().print(table)
    print()
    for scale in scales.SCALES.values():
        print(to_terminal(f"--scale {scale.name:6} {scale.cost}", indent=" " * 15))
    return 0


def dry_run(config: Reproduce) -> int:
    """Print runs, operations, hours and memory; create nothing."""
    from dape.experiments.reproduce.cost import cost_of

    experiment, scale = chosen(config)
    check(config, folder_of(config, experiment, scale))
    cost = cost_of(experiment, scale, seeds=config.seeds or experiment.seeds)
    about = f"{experiment.id}: {experiment.title} ({experiment.where} of the paper), scale {scale.name}"
    for line in (about, *cost.lines(), "nothing was run"):
        print(to_terminal(line))
    return 0
