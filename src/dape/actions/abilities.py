"""Small models, each trained on one generated test: what ``dape probe --train`` does with names of tests."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dape.actions.found import Found
from dape.actions.running import begin_and_run, check_small_models
from dape.experiments.abilities import Abilities
from dape.experiments.executor import Executor
from dape.files import locked, write_text
from dape.tasks.abilities.catalogue import chosen, find
from dape.tasks.abilities.config import AbilityConfig

METHODS = ("nope", "rope", "alibi", "kerple", "dape-kerple")
OUT = Path("runs/tests")


def abilities(
    config: AbilityConfig,
    *,
    methods: Sequence[str] = METHODS,
    seeds: int = 1,
    out: str | Path = OUT,
    jobs: int | None = None,
    threads: int | None = None,
    device: str = "auto",
    executor: Executor | None = None,
) -> Found:
    """Train a small model on each test for each encoding and seed, and test it at every length."""
    methods, out, config = tuple(dict.fromkeys(methods)), Path(out), replace(config, tests=chosen(config.tests))
    config.check()
    Abilities.check_folder(out)
    counts = {"seeds": seeds, "jobs": jobs, "threads": threads}
    check_small_models(config, methods, find(config.tests[0]).load().vocabulary, config.test_lengths, **counts)

    from dape.training.device import use_device

    plan = Abilities(out=out, methods=methods, seeds=seeds, config=config, device=str(use_device(device)))
    with locked(plan.out):
        return _found(plan, begin_and_run(plan, jobs=jobs, threads=threads, executor=executor))


def _found(plan: Abilities, failures: dict[str, str]) -> Found:
    from rich.text import Text

    from dape.report.abilities import not_learned, tests_figure, tests_markdown
    from dape.report.drawing import save_figure

    rows = plan.collect()
    found = Found(
        rows=rows,
        out=plan.out,
        files=("results.jsonl", "table.md", "tests.png", "tests.svg"),
        failures=failures,
        make_table=tests_markdown,
        make_figure=tests_figure,
        make_summary=lambda rows: "\n".join(not_learned(rows)),
        make_terminal=lambda rows, width: [Text(tests_markdown(rows))],
    )
    if rows:
        write_text(plan.out / "table.md", found.table())
        save_figure(found.figure(), plan.out / "tests")
    return found
