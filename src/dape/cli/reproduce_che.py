"""``dape reproduce che``: `dape che` at one of four scales, and the counts that the paper claims."""

from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from dape.cli import che
from dape.experiments.reproduce.catalogue import PaperExperiment
from dape.experiments.reproduce.scales import CHE, Scale
from dape.files import write_text

if TYPE_CHECKING:
    from dape.cli.reproduce import Reproduce


def run(config: "Reproduce", out: Path, experiment: PaperExperiment, scale: Scale) -> int:
    from dape.cli.reproduce_runs import tell_claims
    from dape.experiments.grid import RESULTS
    from dape.experiments.reproduce.judge import judge_all
    from dape.experiments.reproduce.plan import SETTINGS
    from dape.report.reproduction import write_claims
    from dape.results.records import read_rows

    settings = settings_of(config, out, scale)
    code = che.run(settings)
    if not (out / RESULTS).is_file():
        return code
    write_text(out / SETTINGS, yaml.safe_dump({"experiment": experiment.id, "scale": scale.name}, sort_keys=False))
    judged = judge_all(experiment, read_rows(out / RESULTS))
    reduced = che.reduced(che.plan_of(settings))
    write_claims(out, experiment, judged, [*reduced, *([scale.caveat] if scale.caveat else [])])
    tell_claims(judged)
    print(f"wrote claims.md, claims.json in {out}")
    return code


def settings_of(config: "Reproduce", out: Path, scale: Scale) -> che.Che:
    less = CHE[scale.name]
    return che.Che(
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
