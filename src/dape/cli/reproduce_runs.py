"""``dape reproduce`` where language models are trained, and where one is looked into afterwards."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.cli.checks import check_model, check_reach
from dape.cli.console import open_console
from dape.cli.live import LiveRuns, run_shown, side_by_side, tell_failures, threads_each
from dape.errors import UsageError
from dape.experiments.reproduce.catalogue import PaperExperiment
from dape.experiments.reproduce.scales import Scale
from dape.files import locked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dape.cli.reproduce import Reproduce
    from dape.experiments.reproduce.judge import Judged
    from dape.experiments.reproduce.plan import Reproduction
    from dape.results.records import Row

MAP_LENGTHS = (512, 2048, 8192)
"""Of the paper's pictures."""
MAP_SAMPLES = 2


def run(config: "Reproduce", out: Path, experiment: PaperExperiment, scale: Scale) -> int:
    with locked(out):
        plan = plan_of(config, out, experiment, scale)
        jobs = config.jobs or side_by_side(plan)
        if config.budget is not None:
            plan = _within(plan, config.budget, jobs)
        plan.begin()
        reused = plan.reuse(config.reuse)
        _announce(plan, jobs, reused)
        failures = run_shown(plan, LivePanels, jobs=jobs, threads=threads_each(jobs))
        heads = draw_maps(plan, config.device) if experiment.kind == "maps" and not failures else []
        return _report(plan, failures, heads)


def plan_of(config: "Reproduce", out: Path, experiment: PaperExperiment, scale: Scale) -> "Reproduction":
    """Everything that can be wrong is found here, before anything is trained."""
    from dape.cli.devices import use_device
    from dape.data.corpora import open_data
    from dape.data.store import is_prepared
    from dape.experiments.reproduce.plan import Reproduction

    data = config.data or scale.data
    if not data:
        raise UsageError(
            f"--scale {scale.name} needs --data: the paper used {experiment.data}, which cannot be shipped. "
            "Make a folder of your own text with `dape prepare`"
        )
    device = str(use_device(config.device))
    tokenizer = "bytes" if is_prepared(Path(data)) else scale.tokenizer
    corpus = open_data(data, out=out / "data", tokenizer=tokenizer)
    plan = Reproduction(
        out=out,
        experiment=experiment,
        scale=scale,
        seeds=config.seeds or experiment.seeds,
        data=str(corpus.folder.resolve()),
        data_name=corpus.name,
        data_hash=corpus.hash,
        device=device,
    )
    for run in plan.runs():
        check_model(plan.model(run), plan.scale.train(run.size, run.train_length), device)
        check_reach(plan.model(run), max(plan.effort(run).tests))
    return plan


def _within(plan: "Reproduction", hours: float, jobs: int) -> "Reproduction":
    """The plan cut to the hours: the one the folder was begun with, or a new one."""
    from dape.experiments.reproduce.budget import fit, speeds_of

    known = plan.saved_budget()
    if known is not None:
        if known["hours"] != hours:
            raise UsageError(
                f"--out {plan.out} was planned for --budget {known['hours']:g}, now {hours:g}; use another --out"
            )
        print(f"budget: {hours:g} hours, planned before: {known['seeds']} seeds of {known['steps']} steps")
        return plan.budgeted(hours, seeds=known["seeds"], steps=known["steps"])
    speeds = speeds_of(plan, threads_each(jobs), watch=lambda text: print(text, file=sys.stderr, flush=True))
    fitted, cut = fit(plan, speeds, hours, jobs)
    print(f"budget: {hours:g} hours; " + (f"cut to {' and '.join(cut)}" if cut else "nothing has to be cut"))
    return plan.budgeted(hours, seeds=fitted.seeds, steps=fitted.scale.steps or 0)


def _announce(plan: "Reproduction", jobs: int, reused: int) -> None:
    experiment, runs = plan.experiment, plan.runs()
    done = sum(map(plan.finished, runs))
    finished = f", {done} of them already finished" if done else ""
    taken = f" ({reused} taken over)" if reused else ""
    print(f"{experiment.id}: {experiment.title} ({experiment.where} of the paper), scale {plan.scale.name}")
    print(f"{len(runs)} runs{finished}{taken}, {jobs} at a time, into {plan.out}; text: {plan.data_name}")
    for words in plan.scale.reductions(experiment):
        print(f"reduced: {words}")
    sys.stdout.flush()


def draw_maps(plan: "Reproduction", device: str) -> "Sequence[Mapping[str, Any]]":
    """The paper's pictures of the model just trained; what its heads do at the greatest length."""
    from dape.cli import visualize
    from dape.evaluation.map_files import read_facts

    (trial,) = [run for run in plan.runs() if run.seed == 0]
    facts: dict[str, Any] = {}
    for length in map(plan.scale.length, MAP_LENGTHS):
        out = plan.out / f"maps-{length}"
        look = visualize.Visualize(
            checkpoint=plan.folder(trial), out=out, length=length, samples=MAP_SAMPLES, device=device
        )
        visualize.run(look)
        facts = read_facts(out) or {}
    return facts["heads_summary"]


class LivePanels(LiveRuns):
    """Perplexities, one table per model size and training length."""

    def _found(self, rows: "list[Row]") -> str:
        return "perplexity " + " ".join(f"{row.length}: {row.value:.4g}" for row in rows)

    def _tables(self) -> "Sequence[Any]":
        return _tables(self._plan, self._rows, self._console.width)


def _tables(plan: "Reproduction", rows: "list[Row]", width: int) -> list[Any]:
    """With a heading each."""
    from dape.report.reproduction import by_panel, title
    from dape.report.tables import terminal_table

    labels = [arm.label for arm in plan.experiment.arms]
    parts: list[Any] = []
    for panel, of_panel in by_panel(rows).items():
        parts += [f"\n{title(panel)}", terminal_table(of_panel, methods=labels, width=width)]
    return parts


def _report(plan: "Reproduction", failures: dict[str, str], heads: "Sequence[Mapping[str, Any]]") -> int:
    """Files first, then the terminal."""
    from dape.experiments.reproduce.judge import judge_all
    from dape.report import reproduction

    rows = plan.collect()
    tell_failures(failures)
    if not rows:
        return 1
    reduced = plan.scale.reductions(plan.experiment)
    judged = judge_all(plan.experiment, rows, heads=heads)
    written = reproduction.write_tables(plan.out, plan.experiment, rows, reduced)
    written += reproduction.write_figures(plan.out, plan.experiment, rows)
    written += reproduction.write_claims(plan.out, plan.experiment, judged, reduced)
    console = open_console()
    console.print(*_tables(plan, rows, console.width), sep="\n")
    tell_claims(judged)
    print(f"wrote {', '.join(path.name for path in [plan.results, *written])} in {plan.out}")
    return 1 if failures else 0


def tell_claims(judged: "Sequence[Judged]") -> None:
    print("\nThe paper's claims, here:")
    for each in judged:
        print(f"  {each.ours.verdict:23} {each.claim.statement}")
    print()
