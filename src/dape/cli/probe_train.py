"""``dape probe --train``: small models that learn to recall, in processes of their own. Imports torch when it runs."""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dape.cli.checks import check_encoding, check_model, check_reach
from dape.cli.console import open_console
from dape.cli.devices import use_device
from dape.cli.live import AGAIN, LiveAccuracy, run_shown
from dape.errors import UsageError
from dape.evaluation.probe.config import RecallConfig, doublings, given
from dape.files import check_writable_folder, locked
from dape.training.interrupt import signals_as_interrupts

if TYPE_CHECKING:
    from dape.cli.probe import Probe
    from dape.evaluation.probe.plan import Plan
    from dape.evaluation.records import Row

LEARNED = 0.9
"""Accuracy at the training length below which longer lengths say nothing about positions."""


def train(config: "Probe") -> int:
    plan = _plan(config)
    with locked(config.out):
        plan.begin()
        jobs = _jobs(config, plan)
        todo = [r for r in plan.runs() if not plan.finished(r)]
        _announce(plan, len(todo), jobs)
        with signals_as_interrupts():
            plan = replace(plan, threads=_threads(config, jobs))
            failures = run_shown(plan, todo, jobs, lambda: LiveProbe(plan), hint=AGAIN.format(plan.out))
        return _report(plan, failures)


def _plan(config: "Probe") -> "Plan":
    """Everything that can be wrong is found here, before anything is trained."""
    for method in config.methods:
        check_encoding(method, "--methods")
    if not config.methods:
        raise UsageError("--methods needs at least one encoding")
    for name in ("seeds", "jobs", "threads"):
        if getattr(config, name) is not None and getattr(config, name) < 1:
            raise UsageError(f"--{name} must be at least 1, got {getattr(config, name)}")
    settings = recall_config(config)
    settings.check()
    check_writable_folder(config.out, "--out")

    from dape.evaluation.probe.plan import Plan

    device = str(use_device(config.device))
    _check_models(config.methods, settings)
    methods = tuple(dict.fromkeys(config.methods))
    return Plan(out=config.out, methods=methods, seeds=config.seeds, config=settings, device=device)


def recall_config(config: "Probe") -> RecallConfig:
    same = ("test_pairs", "train_length", "steps", "batch", "lr", "layers", "width", "heads")
    return RecallConfig(
        lengths=tuple(sorted(config.lengths)) or doublings(config.train_length),
        depths=tuple(sorted(config.depths)),
        **{name: getattr(config, name) for name in same},
        **given(samples=config.samples, pairs=config.pairs),
    )


def _check_models(methods: Sequence[str], settings: RecallConfig) -> None:
    from dape.evaluation.probe.learn import model_config

    for method in methods:
        model = model_config(settings, method)
        check_model(model)
        check_reach(model, max(settings.lengths))


def _jobs(config: "Probe", plan: "Plan") -> int:
    from dape.sweep.pool import usable_cores

    if config.jobs is not None:
        return config.jobs
    return min(usable_cores(), len(plan.runs())) if plan.device == "cpu" else 1


def _threads(config: "Probe", jobs: int) -> int:
    from dape.sweep.pool import usable_cores

    return config.threads or max(1, usable_cores() // jobs)


def _announce(plan: "Plan", todo: int, jobs: int) -> None:
    config, runs = plan.config, len(plan.runs())
    finished = f", {runs - todo} of them already finished" if todo < runs else ""
    grid = f"{_count(len(plan.methods), 'encoding')} x {_count(plan.seeds, 'seed')} = {_count(runs, 'run')}"
    print(
        f"{grid}{finished}, {jobs} at a time, into {plan.out}\n"
        f"train: {config.steps} steps of {config.batch} x {config.train_length} tokens, 2 to {config.pairs} pairs of "
        f"{config.keys} keys and {config.keys} values; {config.layers} layers, width {config.width}, "
        f"{config.heads} heads\n"
        f"test: {', '.join(map(str, config.lengths))} tokens, {config.samples} sequences each",
        flush=True,
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


class LiveProbe(LiveAccuracy):
    """Accuracy instead of perplexity."""

    def add(self, rows: "list[Row]", name: str) -> None:
        self._rows = rows
        if self._plain:
            own = [row for row in rows if row.run == name and not {"depth", "pairs"} & set(row.extra)]
            values = " ".join(f"{row.length}: {100 * row.value:.0f}%" for row in own)
            self.say(f"[{time.monotonic() - self._begin:5.0f} s] {name}  accuracy {values}")

    def _picture(self, doing: Sequence[str]) -> Any:
        from rich.console import Group
        from rich.text import Text

        from dape.evaluation.probe.report import recall_table

        table = recall_table(self._rows, self._plan, width=self._console.width)
        return Group(table, *(Text(line, "dim") for line in [*doing, self._time_left()]))


def _report(plan: "Plan", failures: dict[str, str]) -> int:
    """Files first, then the terminal."""
    from dape.evaluation.probe.report import not_learned, recall_table, write_report

    rows = plan.collect()
    for name, words in failures.items():
        print(f"dape: {name} failed, {words}", file=sys.stderr)
    if not rows:
        return 1
    written = write_report(rows, plan)
    console = open_console()
    console.print(recall_table(rows, plan, width=console.width))
    for words in not_learned(rows, plan, LEARNED):
        print(words)
    print(f"wrote {', '.join(path.name for path in written)} in {plan.out}")
    return 1 if failures else 0
