"""The Chomsky-hierarchy benchmark as an experiment of the paper, at one of its scales, with its claims."""

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dape.actions.chomsky import ChomskyOptions, chomsky, plan_of
from dape.actions.found import Found
from dape.experiments.executor import Executor
from dape.experiments.reproduce.catalogue import PaperExperiment
from dape.experiments.reproduce.scales import CHE, Scale
from dape.files import write_text

if TYPE_CHECKING:
    from dape.actions.reproduce import Reproduced, ReproduceOptions


def run(
    config: "ReproduceOptions", out: Path, experiment: PaperExperiment, scale: Scale, executor: Executor | None
) -> "Reproduced":
    from dape.actions.reproduce import Reproduced, in_words
    from dape.experiments.grid import RESULTS
    from dape.experiments.reproduce.judge import judge_all
    from dape.experiments.reproduce.plan import SETTINGS
    from dape.report.reproduction import write_claims
    from dape.results.records import read_rows

    options = options_of(config, out, scale)
    found = chomsky(options, executor=executor)
    if not found.rows:
        return Reproduced(**_fields(found))
    write_text(out / SETTINGS, yaml.safe_dump({"experiment": experiment.id, "scale": scale.name}, sort_keys=False))
    judged = judge_all(experiment, read_rows(out / RESULTS))
    reduced = [*plan_of(options).reduced(), *([scale.caveat] if scale.caveat else [])]
    write_claims(out, experiment, judged, reduced)
    words = f"{found.summary()}\n\n{in_words(judged)}"
    with_claims = replace(found, files=(*found.files, "claims.md", "claims.json"), make_summary=lambda rows: words)
    return Reproduced(**_fields(with_claims), claims=judged)


def _fields(found: Found) -> dict[str, Any]:
    return {each.name: getattr(found, each.name) for each in fields(found)}


def options_of(config: "ReproduceOptions", out: Path, scale: Scale) -> ChomskyOptions:
    less = CHE[scale.name]
    return ChomskyOptions(
        tasks=less.tasks,
        methods=less.methods,
        seeds=config.seeds or (3 if scale.name == "paper" else 1),
        steps=less.steps,
        lr=tuple(map(str, less.rates)),
        scale=less.width,
        hidden=less.hidden,
        batch=less.batch,
        samples=less.samples,
        lengths=less.lengths,
        out=out,
        jobs=config.jobs,
        device=config.device,
    )
