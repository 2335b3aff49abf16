"""Small models, each trained on one generated test: what ``dape probe --train`` does with names of tests."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dape.actions.found import Found
from dape.actions.running import announce, check_counts, run_all, side_by_side
from dape.experiments.abilities import Abilities
from dape.experiments.executor import Executor
from dape.files import check_writable_folder, locked, write_text
from dape.tasks.abilities.catalogue import chosen
from dape.tasks.abilities.config import AbilityConfig
from dape.training.checks import check_methods, check_model, check_reach

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
    plan = _plan(config, tuple(dict.fromkeys(methods)), seeds, Path(out), jobs, threads, device)
    with locked(plan.out):
        plan.begin()
        jobs = jobs or side_by_side(plan)
        announce(plan, jobs, executor=executor)
        failures = run_all(plan, jobs=jobs, threads=threads, executor=executor)
        return _found(plan, failures)


def _plan(
    config: AbilityConfig,
    methods: tuple[str, ...],
    seeds: int,
    out: Path,
    jobs: int | None,
    threads: int | None,
    device: str,
) -> Abilities:
    """Everything that can be wrong is found here, before anything is trained."""
    check_methods(methods)
    check_counts(seeds=seeds, jobs=jobs, threads=threads)
    config = replace(config, tests=chosen(config.tests))
    config.check()
    check_writable_folder(out, "`out`")

    from dape.tasks.abilities.task import model_config
    from dape.training.device import use_device

    for method in methods:
        model = model_config(config, config.tests[0], method)
        check_model(model)
        check_reach(model, max(config.test_lengths))
    return Abilities(out=out, methods=methods, seeds=seeds, config=config, device=str(use_device(device)))


def _found(plan: Abilities, failures: dict[str, str]) -> Found:
    from rich.text import Text

    from dape.report.abilities import not_learned, tests_markdown

    rows = plan.collect()
    found = Found(
        rows=rows,
        out=plan.out,
        files=("results.jsonl", "table.md"),
        failures=failures,
        make_table=tests_markdown,
        make_summary=lambda rows: "\n".join(not_learned(rows)),
        make_terminal=lambda rows, width: [Text(tests_markdown(rows))],
    )
    if rows:
        write_text(plan.out / "table.md", found.table())
    return found
