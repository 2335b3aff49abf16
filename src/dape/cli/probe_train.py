"""``dape probe --train``: small models that learn to recall, in processes of their own. Imports torch when it runs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dape.cli.checks import check_encoding, check_model, check_reach
from dape.cli.console import open_console
from dape.cli.devices import use_device
from dape.cli.live import LiveRuns, run_shown, side_by_side, tell_failures, threads_each
from dape.errors import UsageError
from dape.files import check_writable_folder, locked
from dape.tasks.recall.config import RecallConfig, doublings, given

if TYPE_CHECKING:
    from dape.cli.probe import Probe
    from dape.experiments.recall import Recall
    from dape.results.records import Row

LEARNED = 0.9
"""Accuracy at the training length below which longer lengths say nothing about positions."""


def train(config: "Probe") -> int:
    plan = _plan(config)
    with locked(config.out):
        plan.begin()
        jobs = config.jobs or side_by_side(plan)
        _announce(plan, jobs)
        threads = config.threads or threads_each(jobs)
        return _report(plan, run_shown(plan, LiveProbe, jobs=jobs, threads=threads))


def _plan(config: "Probe") -> "Recall":
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

    from dape.experiments.recall import Recall

    device = str(use_device(config.device))
    _check_models(config.methods, settings)
    methods = tuple(dict.fromkeys(config.methods))
    return Recall(out=config.out, methods=methods, seeds=config.seeds, config=settings, device=device)


def recall_config(config: "Probe") -> RecallConfig:
    same = ("test_pairs", "train_length", "steps", "batch", "lr", "layers", "width", "heads")
    return RecallConfig(
        lengths=tuple(sorted(config.lengths)) or doublings(config.train_length),
        depths=tuple(sorted(config.depths)),
        **{name: getattr(config, name) for name in same},
        **given(samples=config.samples, pairs=config.pairs),
    )


def _check_models(methods: Sequence[str], settings: RecallConfig) -> None:
    from dape.tasks.recall.task import model_config

    for method in methods:
        model = model_config(settings, method)
        check_model(model)
        check_reach(model, max(settings.lengths))


def _announce(plan: "Recall", jobs: int) -> None:
    config, runs = plan.config, len(plan.runs())
    done = sum(map(plan.finished, plan.runs()))
    finished = f", {done} of them already finished" if done else ""
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


class LiveProbe(LiveRuns):
    """Accuracy instead of perplexity."""

    def _found(self, rows: "list[Row]") -> str:
        own = [row for row in rows if not {"depth", "pairs"} & set(row.extra)]
        return "accuracy " + " ".join(f"{row.length}: {100 * row.value:.0f}%" for row in own)

    def _tables(self) -> Sequence[Any]:
        from dape.report.recall import recall_table

        return [recall_table(self._rows, self._plan, width=self._console.width)]


def _report(plan: "Recall", failures: dict[str, str]) -> int:
    """Files first, then the terminal."""
    from dape.report.recall import not_learned, recall_table, write_report

    rows = plan.collect()
    tell_failures(failures)
    if not rows:
        return 1
    written = write_report(rows, plan)
    console = open_console()
    console.print(recall_table(rows, plan, width=console.width))
    for words in not_learned(rows, plan, LEARNED):
        print(words)
    print(f"wrote {', '.join(path.name for path in written)} in {plan.out}")
    return 1 if failures else 0
