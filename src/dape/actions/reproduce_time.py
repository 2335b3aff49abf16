"""Times of a training step for each model size, beside the paper's table."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dape.bench.model import ModelBench, measure, rows, show
from dape.bench.runner import Progress
from dape.errors import UsageError
from dape.experiments.reproduce.catalogue import PaperExperiment
from dape.experiments.reproduce.scales import Scale
from dape.files import locked, write_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dape.actions.reproduce import Reproduced, ReproduceOptions
    from dape.results.records import Row

SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": {"sizes": ("350m",), "minutes": 0.5, "rounds": 2, "passes": ("forward", "step")},
    "cpu": {"minutes": 15.0},
    "gpu": {"rounds": 20, "warm_up": 5, "precision": "bf16"},
    "paper": {"rounds": 100, "warm_up": 20, "precision": "bf16"},
}
"""Settings of the benchmark by scale; ``minutes`` is per model size."""


def run(config: "ReproduceOptions", out: Path, experiment: PaperExperiment, scale: Scale) -> "Reproduced":
    from dape.experiments.grid import RESULTS
    from dape.experiments.reproduce.plan import SETTINGS as FILE
    from dape.results.records import append_rows, read_rows
    from dape.training.device import use_device

    _refuse(config)
    settings = dict(SETTINGS[scale.name])
    sizes = settings.pop("sizes", experiment.sizes)
    with locked(out):
        device, results = str(use_device(config.device)), out / RESULTS
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / FILE, yaml.safe_dump({"experiment": experiment.id, "scale": scale.name}, sort_keys=False))
        known = read_rows(results, unfinished=True) if results.exists() else []
        for size in sizes:
            if size in {row.extra["model"] for row in known}:
                print(f"{size}: measured already, in {results}")
                continue
            found = measure(
                ModelBench(sizes=(size,), encodings=_methods(experiment), device=device, **settings), progress=Progress
            )
            show(found)
            if not found.complete:
                raise KeyboardInterrupt
            append_rows(results, rows(found))
            known += rows(found)
        return _found(out, experiment, known, [_reduced(scale, sizes, device)])


def _refuse(config: "ReproduceOptions") -> None:
    for name in ("seeds", "data", "jobs"):
        if getattr(config, name) is not None:
            raise UsageError(f"`{name}`: times are measured one after the other, on random tokens; omit it")


def _methods(experiment: PaperExperiment) -> tuple[str, ...]:
    return tuple(arm.method for arm in experiment.arms)


def _reduced(scale: Scale, sizes: "Sequence[str]", device: str) -> str:
    depth = "one and two layers are measured and extrapolated linearly to the whole depth"
    return f"{', '.join(sizes)} on {device} instead of an A800; {depth} (scale {scale.name})"


def _found(out: Path, experiment: PaperExperiment, known: "list[Row]", reduced: "Sequence[str]") -> "Reproduced":
    from dape.actions.reproduce import Reproduced, in_words
    from dape.experiments.reproduce.judge import judge_all
    from dape.report.reproduction import time_table, write_claims

    judged = judge_all(experiment, known)
    write_text(out / "tables.md", time_table(known, experiment))
    write_claims(out, experiment, judged, reduced)
    return Reproduced(
        rows=known,
        out=out,
        files=("results.jsonl", "tables.md", "claims.md", "claims.json"),
        claims=judged,
        make_table=lambda rows: time_table(rows, experiment),
        make_figure=_no_figure,
        make_summary=lambda rows: in_words(judged),
    )


def _no_figure(rows: "list[Row]") -> Any:
    raise ValueError("times have no figure; table() shows them beside the paper's")
