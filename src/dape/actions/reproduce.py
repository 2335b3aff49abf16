"""``dape.reproduce`` and ``dape reproduce``: repeat an experiment of the paper and judge its claims."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dape.actions.fields import Jobs, OnDevice
from dape.actions.found import Found
from dape.actions.running import announce, run_all, side_by_side, threads_each
from dape.errors import UsageError, check_counts
from dape.experiments.executor import Executor
from dape.experiments.reproduce import scales
from dape.experiments.reproduce.catalogue import PaperExperiment, find
from dape.experiments.reproduce.scales import Scale, ScaleName
from dape.files import check_writable_folder, locked
from dape.results.numbers import count
from dape.training.checks import check_model, check_reach

if TYPE_CHECKING:
    from dape.experiments.reproduce.judge import Judged
    from dape.experiments.reproduce.plan import Reproduction
    from dape.results.records import Row

MAP_LENGTHS = (512, 2048, 8192)
"""Lengths of the paper's bias maps."""
MAP_SAMPLES = 2


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(OnDevice, Jobs):
    """Arguments of :func:`reproduce_with`."""

    id: str = ""
    """An experiment of the paper."""
    scale: ScaleName = "smoke"
    """smoke: a check that it runs, two minutes. cpu: about an hour on two cores. night: 8 million tokens per run, hours
    on two cores. gpu: hours on a GPU. paper: as published."""
    tokens: float | None = None
    """Training tokens per run, in place of the scale's. To compare several numbers, give each its own `out`."""
    size: Literal["125m", "350m", "2.7b", "6.7b"] | None = None
    """Model size in place of the experiment's, reduced as `scale` says. To compare several sizes, give each its own
    `out`."""
    seeds: int | None = None
    """Runs of each kind, with seeds 0, 1, ...; by default as in the paper."""
    budget: float | None = None
    """Hours the experiment may take on this machine. Times a few steps, then reduces seeds and steps to fit, and says
    what it reduced. A folder keeps the plan it was started with."""
    out: Path | None = None
    """Folder of the experiment; by default runs/reproduce/ID-SCALE."""
    data: str | None = None
    """Text, as for `dape compare`. The scales gpu and paper have no default: the paper's corpora cannot be shipped."""
    reuse: tuple[Path, ...] = ()
    """Folders of other reproductions: copy their finished runs that have exactly the same settings."""
    resume: bool = False
    """Fail unless the folder holds an experiment to continue. Without this flag, an existing experiment is continued
    and a new one is started otherwise."""


@dataclass(frozen=True, kw_only=True)
class Reproduced(Found):
    """Results with a verdict on every claim of the experiment."""

    claims: "Sequence[Judged]" = ()


def reproduce(id: str, *, executor: Executor | None = None, **options: Any) -> Reproduced:
    """Repeat an experiment of the paper, at its scale or a smaller one, and judge its claims.

    Finished runs in its folder are kept.

    Args:
        id: the experiment; ``dape reproduce list`` shows them.
        executor: where runs are done; by default processes of this machine.
        **options: the fields of :class:`ReproduceOptions`: ``scale="cpu"``, ``seeds=3``, ``out=...``, ``data=...``.

    Returns:
        The results, with ``.claims``.

    Raises:
        ValueError: for an unknown experiment and for invalid settings.

    Example::

        found = dape.reproduce("bias-ablation", scale="smoke", out="runs/ablation")
        print([(each.claim.statement, each.ours.verdict) for each in found.claims])
    """
    if options.get("out") is not None:
        options["out"] = Path(options["out"])
    return reproduce_with(ReproduceOptions(id=id, **options), executor=executor)


def reproduce_with(options: ReproduceOptions, *, executor: Executor | None = None) -> Reproduced:
    from dape.actions import reproduce_che, reproduce_time

    experiment, scale = chosen(options)
    out = folder_of(options, experiment, scale)
    check(options, out)
    if experiment.kind == "che":
        return reproduce_che.run(options, out, experiment, scale, executor)
    if experiment.kind == "time":
        return reproduce_time.run(options, out, experiment, scale)
    return _run(options, out, experiment, scale, executor)


def folder_of(options: ReproduceOptions, experiment: PaperExperiment, scale: Scale) -> Path:
    rung = (options.size, None if options.tokens is None else f"{options.tokens:g}-tokens")
    return options.out or Path("runs/reproduce") / "-".join([experiment.id, scale.name, *filter(None, rung)])


def chosen(config: ReproduceOptions) -> tuple[PaperExperiment, Scale]:
    """The experiment and the scale, changed by the options ``size`` and ``tokens``."""
    experiment, scale = find(config.id), scales.find(config.scale)
    for name in ("tokens", "size", "budget"):
        if experiment.kind != "language" and getattr(config, name) is not None:
            raise UsageError(f"`{name}` is for experiments that train language models; {experiment.id} is not one")
    if config.budget is not None and not 0 < config.budget < 1e5:
        raise UsageError(f"`budget` must be a number of hours above 0, got {config.budget:g}")
    if config.budget is not None and config.tokens is not None:
        raise UsageError("`budget` sets the number of tokens; omit `tokens`")
    if config.size:
        experiment = replace(experiment, sizes=(config.size,))
    if config.tokens is not None:
        if not 1 <= config.tokens < 1e15:
            raise UsageError(f"`tokens` must be at least 1, got {config.tokens:g}")
        if scale.tokens is None:
            raise UsageError(f"`tokens`: scale {scale.name} takes its steps from the paper; choose another `scale`")
        scale = scale.with_tokens(int(config.tokens))
    return experiment, scale


def check(config: ReproduceOptions, out: Path) -> None:
    check_counts(config, "seeds", "jobs")
    check_writable_folder(out, "`out`")
    from dape.experiments.grid import saved_settings
    from dape.experiments.reproduce.plan import SETTINGS

    holds = saved_settings(out, SETTINGS)
    if holds and (holds.get("experiment"), holds.get("scale")) != (config.id, config.scale):
        raise UsageError(
            f"`out` {out} holds another experiment: {holds.get('experiment')} at scale {holds.get('scale')}, not "
            f"{config.id} at scale {config.scale}; choose another folder"
        )
    if config.resume and not (out / SETTINGS).is_file():
        raise UsageError(f"`resume` `out` {out}: there is nothing to continue (no {SETTINGS} in it)")
    for folder in config.reuse:
        if not (folder / SETTINGS).is_file():
            raise UsageError(f"`reuse` {folder}: holds no reproduction (no {SETTINGS} in it)")


# Language models -----------------------------------------------------------------------------------------------------


def _run(
    config: ReproduceOptions, out: Path, experiment: PaperExperiment, scale: Scale, executor: Executor | None
) -> Reproduced:
    """Experiments that train language models; of kind "maps", also draw the bias maps of one."""
    from dape.experiments.reproduce.plan import Reproduction

    Reproduction.check_folder(out)
    with locked(out):
        plan = plan_of(config, out, experiment, scale)
        jobs = config.jobs or side_by_side(plan)
        if config.budget is not None:
            plan = _within_budget(plan, config.budget, jobs)
        plan.begin()
        reused = plan.reuse(config.reuse)
        announce(plan, jobs, executor=executor, note=f" ({reused} taken over)" if reused else "")
        failures = run_all(plan, jobs=jobs, executor=executor, tables=lambda rows, width: _tables(plan, rows, width))
        heads = draw_maps(plan, config.device) if experiment.kind == "maps" and not failures else []
        return _found(plan, failures, heads)


def plan_of(config: ReproduceOptions, out: Path, experiment: PaperExperiment, scale: Scale) -> "Reproduction":
    """Check all arguments, so that errors show before anything is trained."""
    from dape.data.corpora import open_data
    from dape.data.store import is_prepared
    from dape.experiments.reproduce.plan import Reproduction
    from dape.training.device import use_device

    data = config.data or scale.data
    if not data:
        raise UsageError(
            f"`scale` {scale.name} needs `data`: the paper used {experiment.data}, which cannot be shipped. "
            "Make a folder of your own text with `dape prepare`"
        )
    tokenizer = "bytes" if is_prepared(Path(data)) else scale.tokenizer
    corpus = open_data(data, out=out / "data", tokenizer=tokenizer)
    device = str(use_device(config.device))
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


def _within_budget(plan: "Reproduction", hours: float, jobs: int) -> "Reproduction":
    """The plan reduced to the budget: the plan the folder was started with, or a new one."""
    from dape.experiments.reproduce.budget import fit, speeds_of

    known = plan.saved_budget()
    if known is not None:
        if known["hours"] != hours:
            raise UsageError(
                f"`out` {plan.out} was planned for `budget` {known['hours']:g}, now {hours:g}; use another `out`"
            )
        print(
            f"budget: {count(hours, 'hour')}, planned before: {count(known['seeds'], 'seed')} of {known['steps']} steps"
        )
        return plan.budgeted(hours, seeds=known["seeds"], steps=known["steps"])
    speeds = speeds_of(plan, threads_each(jobs), watch=lambda text: print(text, file=sys.stderr, flush=True))
    fitted, cut = fit(plan, speeds, hours, jobs)
    print(f"budget: {count(hours, 'hour')}; " + (f"cut to {' and '.join(cut)}" if cut else "nothing has to be cut"))
    return plan.budgeted(hours, seeds=fitted.seeds, steps=fitted.scale.steps or 0)


def draw_maps(plan: "Reproduction", device: str) -> "Sequence[Mapping[str, Any]]":
    """Draw the paper's bias maps of the trained model; return the summary of its heads at the greatest length."""
    from dape.actions import visualize
    from dape.evaluation.map_files import read_facts

    (trial,) = [run for run in plan.runs() if run.seed == 0]
    facts: dict[str, Any] = {}
    for length in map(plan.scale.length, MAP_LENGTHS):
        out = plan.out / f"maps-{length}"
        look = visualize.VisualizeOptions(
            checkpoint=plan.folder(trial), out=out, length=length, samples=MAP_SAMPLES, device=device
        )
        visualize.visualize(look)
        facts = read_facts(out) or {}
    return facts["heads_summary"]


def _tables(plan: "Reproduction", rows: "list[Row]", width: int) -> list[Any]:
    """A heading and a table for each panel of the experiment."""
    from dape.report.reproduction import by_panel, title
    from dape.report.tables import terminal_table

    labels = [arm.label for arm in plan.experiment.arms]
    parts: list[Any] = []
    for panel, of_panel in by_panel(rows).items():
        parts += [f"\n{title(panel)}", terminal_table(of_panel, methods=labels, width=width)]
    return parts


def _found(plan: "Reproduction", failures: dict[str, str], heads: "Sequence[Mapping[str, Any]]") -> Reproduced:
    """The results; writes their files if there are rows."""
    from dape.experiments.reproduce.judge import judge_all
    from dape.report import reproduction

    experiment, rows = plan.experiment, plan.collect()
    reduced = plan.scale.reductions(experiment)
    judged, written = [], []
    if rows:
        judged = judge_all(experiment, rows, heads=heads)
        written = reproduction.write_tables(plan.out, experiment, rows, reduced)
        written += reproduction.write_figures(plan.out, experiment, rows)
        written += reproduction.write_claims(plan.out, experiment, judged, reduced)
    return Reproduced(
        rows=rows,
        out=plan.out,
        files=[path.name for path in [plan.results, *written]],
        failures=failures,
        claims=judged,
        make_table=lambda rows: reproduction.tables(experiment, rows, reduced),
        make_figure=lambda rows: reproduction.first_figure(experiment, rows),
        make_summary=lambda rows: in_words(judged),
        make_terminal=lambda rows, width: _tables(plan, rows, width),
    )


def in_words(judged: "Sequence[Judged]") -> str:
    """The verdicts on the claims, a line each."""
    lines = [f"  {each.ours.verdict:23} {each.claim.statement}" for each in judged]
    return "\n".join(["The paper's claims, here:", *lines])
