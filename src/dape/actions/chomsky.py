"""``dape che``: plan, run and report the Chomsky-hierarchy benchmark."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dape.actions.fields import OnDevice
from dape.actions.found import Found
from dape.actions.progress import ProgressLine
from dape.actions.running import begin_and_run, side_by_side, threads_each
from dape.errors import UsageError, check_counts
from dape.experiments.chomsky import Chomsky
from dape.experiments.executor import Executor
from dape.files import locked, write_text
from dape.fitting import fitted
from dape.machine import usable_cores
from dape.positional.catalogue import find as find_encoding
from dape.positional.names import parse
from dape.reading import as_record
from dape.results.numbers import count
from dape.tasks.chomsky.catalogue import TASKS, find
from dape.tasks.chomsky.config import (
    LONGEST,
    PAPER_METHODS,
    PAPER_RATES,
    PAPER_SAMPLES,
    PAPER_STEPS,
    WIDTHS,
    CheConfig,
    Scale,
    check_rates,
)
from dape.training.checks import check_encoding

if TYPE_CHECKING:
    from dape.experiments.chomsky_budget import Speed
    from dape.results.records import Row

BUDGET_RATE = 1e-3
FILES = ("results.jsonl", "table.md", "lengths.png", "lengths.svg", "scores.png", "scores.svg")


@dataclass(frozen=True, kw_only=True)
class ChomskyOptions(OnDevice):
    """Arguments of :func:`chomsky`."""

    tasks: tuple[str, ...] = ("paper",)
    """Names of tasks, or the first letters, separated by commas or spaces; paper (its 14 tasks) or all (also
    binary_multiplication)."""
    methods: tuple[str, ...] = ("paper",)
    """Positional encodings from `dape list`, or paper: seven randomized ones and three with DAPE."""
    seeds: int | None = None
    """Runs per task, method and rate, with seeds 0, 1, ...; by default 3, or 1 with `budget`."""
    steps: int | None = None
    """Optimizer steps; by default 200000 as in the paper."""
    lr: tuple[str, ...] = ()
    """Learning rates to pick from, separated by commas; by default 1e-4,3e-4,5e-4, or only 1e-3 with `budget` 1e-3."""
    budget: float | None = None
    """Minutes the benchmark may take. Reduces steps, test lengths and test examples to fit, and says how much."""
    scale: Literal["paper", "cpu"] | None = None
    """Width of the model: paper 256, cpu 64; by default paper, or cpu with `budget`."""
    lengths: tuple[int, ...] = ()
    """Test lengths; by default 1 to 500. The learning rate is picked by accuracy at lengths up to 40."""
    stride: int = 1
    """Test only at every n-th of the default lengths."""
    samples: int | None = None
    """Test examples per length; by default 512."""
    out: Path = Path("runs/che")
    """Folder of the benchmark."""
    jobs: int | None = None
    """Runs at the same time; by default one per core, or one on a GPU."""
    threads: int | None = None
    """Torch threads of each run; by default the cores divided by `jobs`."""
    compat: Literal["none", "deepmind"] = "none"
    """deepmind: as in DeepMind's program, with dropout in tests and the score from length 42 on."""
    batch: int = CheConfig.batch
    """Examples per step."""
    width: int | None = None
    """Width of the model, in place of that of `scale`."""
    layers: int = CheConfig.layers
    """Encoder layers."""
    heads: int = CheConfig.heads
    """Attention heads."""
    hidden: int = CheConfig.hidden
    """Hidden units of DAPE's f."""
    pool: int = CheConfig.pool
    """Randomised positions are drawn from this many positions."""
    dropout: float = CheConfig.dropout
    """Dropout probability in training."""
    computation: int = CheConfig.computation
    """Empty tokens between question and answer, per token of the question."""


def chomsky(options: ChomskyOptions, *, executor: Executor | None = None) -> Found:
    """Train one model for each task, method, rate and seed, and test it at every length."""
    plan = plan_of(options)
    with locked(options.out):
        jobs = options.jobs or side_by_side(plan)
        plan = _within_budget(options, plan, jobs)
        how = {"jobs": jobs, "threads": options.threads, "executor": executor}
        return _found(plan, begin_and_run(plan, **how, tables=lambda rows, width: _terminal(rows, plan, width)))


# Planning ------------------------------------------------------------------------------------------------------------


def words_of(given: Sequence[str]) -> list[str]:
    return [word for words in given for word in words.replace(",", " ").split()]


def chosen_tasks(given: Sequence[str]) -> tuple[str, ...]:
    groups = {"paper": [t.name for t in TASKS.values() if t.in_paper], "all": list(TASKS)}
    names = [name for word in words_of(given) for name in groups.get(word) or [_task(word)]]
    if not names:
        raise UsageError(f"`tasks` needs at least one of: {', '.join(TASKS)}")
    return tuple(dict.fromkeys(names))


def _task(word: str) -> str:
    try:
        return find(word).name
    except UsageError as error:
        raise UsageError(f"`tasks`: {error}, paper, all") from error


def chosen_methods(given: Sequence[str]) -> tuple[str, ...]:
    names = [name for word in words_of(given) for name in (PAPER_METHODS if word == "paper" else [word])]
    if not names:
        raise UsageError("`methods` needs at least one encoding, or paper")
    for name in names:
        check_encoding(name, "methods")
        if not find_encoding(name).bidirectional:
            raise UsageError(
                f"`methods`: {name} is defined under a causal mask only, and these models look both ways; "
                "`dape list` shows which encodings can (Mask: both)"
            )
    return tuple(dict.fromkeys(names))


def chosen_rates(given: Sequence[str], *, budget: bool) -> tuple[float, ...]:
    words = words_of(given)
    if not words and not given:
        return (BUDGET_RATE,) if budget else PAPER_RATES
    try:
        rates = tuple(dict.fromkeys(float(word) for word in words))
    except ValueError as error:
        raise UsageError(f"`lr`: expected numbers such as 1e-4,3e-4; {error}") from error
    check_rates(rates)
    return rates


def settings_of(config: ChomskyOptions) -> CheConfig:
    """The paper's settings with the given ones in their place. A budget changes steps and tests later."""
    scale: Scale = config.scale or ("paper" if config.budget is None else "cpu")
    usual = WIDTHS[scale], CheConfig.layers, CheConfig.heads, CheConfig.hidden
    width = WIDTHS[scale] if config.width is None else config.width
    if (width, config.layers, config.heads, config.hidden) != usual:
        scale = "custom"
    if config.stride < 1:
        raise UsageError(f"`stride` must be at least 1, got {config.stride}")
    if config.lengths and config.stride > 1:
        raise UsageError("`stride` thins out the default lengths; omit it with `lengths`")
    trained = CheConfig.train_length
    default = (*range(config.stride, trained + 1, config.stride), *range(trained + 1, LONGEST + 1, config.stride))
    same = ("layers", "heads", "hidden", "pool", "dropout", "batch", "computation")
    return CheConfig(
        scale=scale,
        width=width,
        steps=PAPER_STEPS if config.steps is None else config.steps,
        samples=PAPER_SAMPLES if config.samples is None else config.samples,
        lengths=tuple(sorted(set(config.lengths))) or default,
        compat="deepmind" if config.compat == "deepmind" else "",
        **{name: getattr(config, name) for name in same},
    )


def plan_of(config: ChomskyOptions) -> Chomsky:
    """Check all arguments, so that errors show before anything is trained."""
    tasks, methods = chosen_tasks(config.tasks), chosen_methods(config.methods)
    rates = chosen_rates(config.lr, budget=config.budget is not None)
    check_counts(config, "seeds", "jobs", "threads")
    seeds = config.seeds or (3 if config.budget is None else 1)
    _check_budget(config, runs=len(tasks) * len(methods) * len(rates) * seeds)
    settings = settings_of(config)
    settings.check()
    Chomsky.check_folder(config.out)

    from dape.training.device import use_device

    device = str(use_device(config.device))
    for task in tasks:
        for method in methods:
            _check_model(settings, task, method)
    return Chomsky(
        out=config.out,
        tasks=tasks,
        methods=methods,
        rates=rates,
        seeds=seeds,
        config=settings,
        budget=config.budget,
        device=device,
    )


def _check_budget(config: ChomskyOptions, runs: int) -> None:
    """Refuse a budget that is too small even for starting the processes, before anything is timed."""
    if config.budget is None:
        return
    if not 0 < config.budget < float("inf"):
        raise UsageError(f"`budget` must be a positive number of minutes, got {config.budget:g}")
    for name in ("steps", "samples", "lengths"):
        if getattr(config, name) not in (None, ()):
            raise UsageError(f"`budget` sets `{name}`; omit one of the two")
    from dape.experiments.chomsky import SETTINGS, least_minutes, too_little

    if (config.out / SETTINGS).is_file():
        return  # the saved plan continues
    if (needed := least_minutes(runs, config.jobs or usable_cores())) > config.budget:
        raise too_little(config.budget, runs, needed, "to begin at all")


def _check_model(settings: CheConfig, task: str, method: str) -> None:
    """Check sizes and lengths without memory or time: the model is built on the meta device."""
    import torch

    from dape.machine import available_bytes
    from dape.tasks.chomsky.model import encoder_for, shape_for, total_length
    from dape.training.cost import require_fits

    loaded, longest = find(task).load(settings.compat), max(settings.lengths)
    total = total_length(settings, loaded, longest)
    limited = parse(method).randomized or method == "learned"
    if limited and total > settings.pool:
        possible = [n for n in range(1, longest) if total_length(settings, loaded, n) <= settings.pool]
        raise UsageError(
            f"{task} at length {longest} has {total} tokens with its answer, but {method} has {settings.pool} "
            f"positions: use `lengths` up to {max(possible, default=0)}, or `pool` {total}"
        )
    shape = shape_for(settings, loaded, method)
    require_fits(shape, available_bytes(), batch=settings.batch, training=True)
    try:
        with torch.device("meta"):
            encoder_for(settings, loaded, method)
    except (ValueError, TypeError) as error:
        shape = f"`width` {settings.width} `heads` {settings.heads} `hidden` {settings.hidden}"
        raise UsageError(f"{method}: {error} ({shape})") from error


def _within_budget(config: ChomskyOptions, plan: Chomsky, jobs: int) -> Chomsky:
    """The plan with steps and tests that fit into the budget. The same budget continues the saved plan."""
    if config.budget is None:
        return plan
    from dape.experiments.chomsky import SETTINGS
    from dape.experiments.grid import saved_settings

    known = saved_settings(config.out, SETTINGS)
    if known and known.get("budget") == config.budget:
        saved = as_record(CheConfig, known.get("shared"), config.out / SETTINGS)
        planned = {name: getattr(saved, name) for name in ("steps", "samples", "lengths")}
        return replace(plan, config=replace(plan.config, **planned))

    from dape.experiments.chomsky_budget import planned as plan_budget
    from dape.experiments.chomsky_budget import time_method
    from dape.training.device import set_threads

    set_threads(config.threads or threads_each(jobs))
    budget, begin, speeds = config.budget, time.monotonic(), {}

    def fitted(speeds: "dict[str, Speed]") -> CheConfig:
        spent = (time.monotonic() - begin) / 60
        repeats = plan.seeds * len(plan.rates)
        return plan_budget(budget, plan.config, speeds, tasks=plan.tasks, repeats=repeats, jobs=jobs, spent=spent)

    with ProgressLine() as line:
        for number, method in enumerate(plan.methods, 1):
            line.show(f"timing {method}, {number} of {count(len(plan.methods), 'method')}, to fill {budget:g} minutes")
            speeds[method] = time_method(plan.config, method)
            fitted(speeds)  # raises as soon as the methods timed so far exceed the budget
    return replace(plan, config=fitted(speeds))


# Results -------------------------------------------------------------------------------------------------------------


def _cells(rows: "list[Row]", plan: Chomsky) -> list[Any]:
    from dape.evaluation.chomsky_scores import summarise

    return summarise(rows, plan.config, tasks=plan.tasks, methods=plan.methods, rates=plan.rates)


def _terminal(rows: "list[Row]", plan: Chomsky, width: int) -> Sequence[Any]:
    from dape.report.chomsky import terminal_table

    return fitted(terminal_table(_cells(rows, plan), plan.config), width, keys=2)


def _found(plan: Chomsky, failures: dict[str, str]) -> Found:
    """The results; writes their files if there are rows."""
    from dape.report import chomsky
    from dape.report.drawing import save_figure

    config, seeds, less = plan.config, plan.seeds, plan.reduced()

    def summary(rows: "list[Row]") -> str:
        sentences = chomsky.conditions(config, seeds=seeds, reduced=less)
        return "\n".join([*sentences, *chomsky.not_learned(_cells(rows, plan))])

    found = Found(
        rows=plan.collect(),
        out=plan.out,
        files=FILES,
        failures=failures,
        make_table=lambda rows: chomsky.markdown(_cells(rows, plan), config, seeds=seeds, reduced=less),
        make_figure=lambda rows: chomsky.length_figure(_cells(rows, plan), config, reduced=less),
        make_summary=summary,
        make_terminal=lambda rows, width: _terminal(rows, plan, width),
    )
    if found.rows:
        write_text(plan.out / "table.md", found.table())
        save_figure(found.figure(), plan.out / "lengths")
        save_figure(chomsky.score_map(_cells(found.rows, plan), config, reduced=less), plan.out / "scores")
    return found
