"""``dape probe --train``: train small models to recall pairs, and test them on longer contexts."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dape.actions.found import Found
from dape.actions.running import begin_and_run, check_small_models
from dape.experiments.executor import Executor
from dape.experiments.recall import Recall
from dape.files import locked, write_text
from dape.tasks.recall.config import RecallConfig

if TYPE_CHECKING:
    from dape.actions.found import Tables

METHODS = ("rope", "alibi", "kerple", "dape-kerple")
LEARNED = 0.9
"""Accuracy at the training length below which longer lengths say nothing about encodings."""


def recall(
    config: RecallConfig,
    *,
    methods: Sequence[str] = METHODS,
    seeds: int = 1,
    out: str | Path = "runs/probe",
    jobs: int | None = None,
    threads: int | None = None,
    device: str = "auto",
    executor: Executor | None = None,
) -> Found:
    """Train a small model on associative recall for each encoding and seed, and test it at every length."""
    methods, out = tuple(dict.fromkeys(methods)), Path(out)
    config.check()
    Recall.check_folder(out)
    check_small_models(config, methods, config.vocabulary, config.lengths, seeds=seeds, jobs=jobs, threads=threads)

    from dape.training.device import use_device

    plan = Recall(out=out, methods=methods, seeds=seeds, config=config, device=str(use_device(device)))
    with locked(plan.out):
        how = {"jobs": jobs, "threads": threads, "executor": executor}
        return _found(plan, begin_and_run(plan, **how, tables=_terminal(plan)))


def _terminal(plan: Recall) -> "Tables":
    from dape.report.recall import recall_table

    return lambda rows, width: [recall_table(rows, plan, width=width)]


def _found(plan: Recall, failures: dict[str, str]) -> Found:
    """The results; writes their files if there are rows."""
    from dape.report.drawing import save_figure
    from dape.report.recall import heat_map, not_learned, recall_markdown

    rows = plan.collect()
    axes = [axis for axis in ("depth", "pairs") if any(axis in row.extra for row in rows)]
    found = Found(
        rows=rows,
        out=plan.out,
        files=("results.jsonl", "table.md", *(f"{axis}.{kind}" for axis in axes for kind in ("png", "svg"))),
        failures=failures,
        make_table=lambda rows: recall_markdown(rows, plan),
        make_figure=lambda rows: heat_map(rows, plan, "depth"),
        make_summary=lambda rows: "\n".join(not_learned(rows, plan, LEARNED)),
        make_terminal=_terminal(plan),
    )
    if found.rows:
        write_text(plan.out / "table.md", found.table())
        for axis in axes:
            save_figure(heat_map(found.rows, plan, axis), plan.out / axis)
    return found
