"""``dape che``: the Chomsky-hierarchy benchmark. Imports torch only when it runs."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dape.cli.checks import check_encoding
from dape.cli.console import open_console
from dape.cli.live import LiveRuns, run_shown, side_by_side, tell_failures, threads_each
from dape.errors import UsageError
from dape.files import check_writable_folder, locked
from dape.positional.catalogue import find as find_encoding
from dape.positional.names import parse
from dape.reading import as_record
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

if TYPE_CHECKING:
    from dape.experiments.chomsky import Chomsky
    from dape.results.records import Row

BUDGET_RATE = 1e-3
"""DeepMind's example uses it at width 64; few steps need a high rate."""
SHOWN = (3, 8, 13)
"""Lengths of the examples that --show prints."""


@dataclass(frozen=True, kw_only=True)
class Che:
    """Algorithmic tasks, trained on lengths 1 to 40 and tested on 41 to 500: the Chomsky-hierarchy benchmark.

    Every task is trained with every method, learning rate and seed; the rate is chosen where training was, the score is
    the mean accuracy at greater lengths. Writes results.jsonl, table.md (beside the paper's numbers), lengths.png/.svg
    and scores.png/.svg into --out. What is finished is not done again: stop at any time and give the same command, or
    add tasks, methods and seeds. The paper's settings take days on a CPU; --budget plans less and says so.
    """

    tasks: tuple[str, ...] = ("paper",)
    """Names or their beginnings, separated by commas or spaces; paper (its 14 tasks) or all (with
    binary_multiplication)."""
    methods: tuple[str, ...] = ("paper",)
    """Positional encodings from `dape list`, or paper: seven randomized ones and three with DAPE."""
    seeds: int | None = None
    """Runs per task, method and rate, with seeds 0, 1, ...; by default 3, with --budget 1."""
    steps: int | None = None
    """Optimizer steps; by default 200000 as in the paper."""
    lr: tuple[str, ...] = ()
    """Learning rates to choose from, separated by commas; by default 1e-4,3e-4,5e-4, with --budget 1e-3."""
    budget: float | None = None
    """Minutes this may take: plans steps, test lengths and test examples, and says what was reduced."""
    scale: Literal["paper", "cpu"] | None = None
    """Width of the model: paper 256, cpu 64; by default paper, with --budget cpu."""
    lengths: tuple[int, ...] = ()
    """Test lengths; by default 1 to 500. Those up to 40 choose the learning rate."""
    stride: int = 1
    """Only every so many-th of the default test lengths."""
    samples: int | None = None
    """Test examples per length; by default 512."""
    show: str | None = None
    """Print examples of this task, and do nothing else."""
    out: Path = Path("runs/che")
    """Folder of the benchmark."""
    jobs: int | None = None
    """Runs side by side; by default one per core, one on a GPU."""
    threads: int | None = None
    """Threads of torch for each run; by default the cores divided by --jobs."""
    device: str = "auto"
    """Where to compute: cpu, cuda, ...; auto takes a GPU if there is one."""
    compat: Literal["none", "deepmind"] = "none"
    """deepmind: as their program does it, with dropout in tests and the score from length 42 on."""
    batch: int = CheConfig.batch
    """Examples per step."""
    width: int | None = None
    """Numbers per token, in place of that of --scale."""
    layers: int = CheConfig.layers
    """Encoder layers."""
    heads: int = CheConfig.heads
    """Attention heads."""
    hidden: int = CheConfig.hidden
    """Width of DAPE's f."""
    pool: int = CheConfig.pool
    """Randomised positions are drawn from so many."""
    dropout: float = CheConfig.dropout
    """Share of activations that are dropped in training."""
    computation: int = CheConfig.computation
    """Empty tokens between question and answer, per token of the question."""


def run(config: Che) -> int:
    if config.show is not None:
        return show(config.show, config.compat)
    plan = plan_of(config)
    with locked(config.out):
        jobs = config.jobs or side_by_side(plan)
        plan = _within_budget(config, plan, jobs)
        plan.begin()
        _announce(plan, jobs)
        threads = config.threads or threads_each(jobs)
        return _report(plan, run_shown(plan, LiveChe, jobs=jobs, threads=threads))


def show(name: str, compat: str) -> int:
    """Examples a person can read."""
    import numpy as np

    entry = find(name)
    task = entry.load("deepmind" if compat == "deepmind" else "")
    about = (sys.modules[type(task).__module__].__doc__ or "").strip()
    print(f"{entry.name} ({entry.level}; guessing gives {100 * entry.chance:.0f}%)\n\n{about}\n")
    generator = np.random.default_rng(0)
    for length in SHOWN:
        sample = task.sample(generator, 2, length)
        for inputs, targets, mask in zip(sample.inputs, sample.targets, sample.mask, strict=True):
            question = " ".join(task.inputs[token] for token in inputs)
            answer = " ".join(task.outputs[token] for token in targets[mask])
            print(f"length {length:2}:  {question}  ->  {answer}")
    print(f"\nAt length 40 a model reads {task.input_length(40)} tokens and writes {task.output_length(40)}.")
    return 0


# Before the work -----------------------------------------------------------------------------------------------------


def words_of(given: Sequence[str]) -> list[str]:
    return [word for words in given for word in words.replace(",", " ").split()]


def chosen_tasks(given: Sequence[str]) -> tuple[str, ...]:
    groups = {"paper": [t.name for t in TASKS.values() if t.in_paper], "all": list(TASKS)}
    names = [name for word in words_of(given) for name in groups.get(word) or [_task(word)]]
    if not names:
        raise UsageError(f"--tasks needs at least one of: {', '.join(TASKS)}")
    return tuple(dict.fromkeys(names))


def _task(word: str) -> str:
    try:
        return find(word).name
    except UsageError as error:
        raise UsageError(f"--tasks: {error}, paper, all") from error


def chosen_methods(given: Sequence[str]) -> tuple[str, ...]:
    names = [name for word in words_of(given) for name in (PAPER_METHODS if word == "paper" else [word])]
    if not names:
        raise UsageError("--methods needs at least one encoding, or paper")
    for name in names:
        check_encoding(name, "--methods")
        if not find_encoding(name).bidirectional:
            raise UsageError(
                f"--methods: {name} is defined under a causal mask only, and these models look both ways; "
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
        raise UsageError(f"--lr: expected numbers such as 1e-4,3e-4; {error}") from error
    check_rates(rates)
    return rates


def settings_of(config: Che) -> CheConfig:
    """The paper's, apart from what was asked for. With a budget, steps and tests are planned later."""
    scale: Scale = config.scale or ("paper" if config.budget is None else "cpu")
    usual = WIDTHS[scale], CheConfig.layers, CheConfig.heads, CheConfig.hidden
    width = WIDTHS[scale] if config.width is None else config.width
    if (width, config.layers, config.heads, config.hidden) != usual:
        scale = "custom"
    if config.stride < 1:
        raise UsageError(f"--stride must be at least 1, got {config.stride}")
    if config.lengths and config.stride > 1:
        raise UsageError("--stride thins out the default lengths; with --lengths leave it out")
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


def plan_of(config: Che) -> "Chomsky":
    """Everything that can be wrong is found here, before anything is trained."""
    tasks, methods = chosen_tasks(config.tasks), chosen_methods(config.methods)
    rates = chosen_rates(config.lr, budget=config.budget is not None)
    for name in ("seeds", "jobs", "threads"):
        if getattr(config, name) is not None and getattr(config, name) < 1:
            raise UsageError(f"--{name} must be at least 1, got {getattr(config, name)}")
    _check_budget(config)
    settings = settings_of(config)
    settings.check()
    check_writable_folder(config.out, "--out")

    from dape.cli.devices import use_device
    from dape.experiments.chomsky import Chomsky

    device = str(use_device(config.device))
    for task in tasks:
        for method in methods:
            _check_model(settings, task, method)
    seeds = config.seeds or (3 if config.budget is None else 1)
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


def _check_budget(config: Che) -> None:
    if config.budget is None:
        return
    if not 0 < config.budget < float("inf"):
        raise UsageError(f"--budget must be a positive number of minutes, got {config.budget:g}")
    for name in ("steps", "samples", "lengths"):
        if getattr(config, name) not in (None, ()):
            raise UsageError(f"--budget plans --{name} itself; leave one of the two out")


def _check_model(settings: CheConfig, task: str, method: str) -> None:
    """Wrong sizes and lengths out of reach show without memory or time."""
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
            f"{task} at length {longest} has {total} tokens with its answer, but {method} knows {settings.pool} "
            f"positions: use --lengths up to {max(possible, default=0)}, or --pool {total}"
        )
    shape = shape_for(settings, loaded, method)
    require_fits(shape, available_bytes(), batch=settings.batch, training=True)
    try:
        with torch.device("meta"):
            encoder_for(settings, loaded, method)
    except (ValueError, TypeError) as error:
        shape = f"--width {settings.width} --heads {settings.heads} --hidden {settings.hidden}"
        raise UsageError(f"{method}: {error} ({shape})") from error


def _within_budget(config: Che, plan: "Chomsky", jobs: int) -> "Chomsky":
    """With steps and tests that fit; those planned before, if this goes on with the same budget."""
    if config.budget is None:
        return plan
    from dape.experiments.chomsky import SETTINGS
    from dape.experiments.grid import saved_settings

    known = saved_settings(config.out, SETTINGS)
    if known and known.get("budget") == config.budget:
        saved = as_record(CheConfig, known.get("shared"), config.out / SETTINGS)
        planned = {name: getattr(saved, name) for name in ("steps", "samples", "lengths")}
        return replace(plan, config=replace(plan.config, **planned))

    from dape.cli.devices import set_threads
    from dape.experiments.chomsky_budget import planned as plan_budget
    from dape.experiments.chomsky_budget import time_method

    set_threads(config.threads or threads_each(jobs))
    print(f"timing {len(plan.methods)} methods to fill {config.budget:g} minutes ...", file=sys.stderr, flush=True)
    begin = time.monotonic()
    speeds = {method: time_method(plan.config, method) for method in plan.methods}
    minutes = config.budget - (time.monotonic() - begin) / 60
    repeats = plan.seeds * len(plan.rates)
    settings = plan_budget(minutes, plan.config, speeds, tasks=plan.tasks, repeats=repeats, jobs=jobs)
    return replace(plan, config=settings)


def reduced(plan: "Chomsky") -> list[str]:
    from dape.report.chomsky import reductions

    return reductions(plan.config, seeds=plan.seeds, rates=plan.rates, all_rates=len(PAPER_RATES))


def _announce(plan: "Chomsky", jobs: int) -> None:
    from dape.experiments.grid import in_short

    config, runs = plan.config, len(plan.runs())
    done = sum(map(plan.finished, plan.runs()))
    finished = f", {done} of them already finished" if done else ""
    counts = {"tasks": plan.tasks, "encodings": plan.methods, "rates": plan.rates, "seeds": range(plan.seeds)}
    grid = " x ".join(f"{len(given)} {name[: -1 if len(given) == 1 else None]}" for name, given in counts.items())
    print(
        f"{grid} = {runs} runs{finished}, {jobs} at a time, into {plan.out}\n"
        f"train: {config.steps} steps of {config.batch} examples, lengths 1 to {config.train_length}; "
        f"{config.layers} layers, width {config.width}, {config.heads} heads (scale {config.scale})\n"
        f"test: {config.samples} examples at lengths {in_short(config.familiar_lengths)} to choose the rate, "
        f"{in_short(config.scored_lengths)} for the score"
    )
    for text in reduced(plan):
        print(f"reduced: {text}")
    sys.stdout.flush()


# The work ------------------------------------------------------------------------------------------------------------


class LiveChe(LiveRuns):
    """Accuracy by task and method."""

    def _found(self, rows: "list[Row]") -> str:
        from dape.evaluation.chomsky_scores import runs_of

        config = self._plan.config
        (of_rate,) = runs_of(rows, config).values()
        (found,) = of_rate.values()
        inside, beyond = 100 * found.familiar(config)[0], 100 * found.score(config)
        first, *_, last = (config.scored_lengths[0], *config.scored_lengths)
        return f"accuracy {inside:.1f}% at 1-{config.train_length}, {beyond:.1f}% at {first}-{last}"

    def _tables(self) -> Sequence[Any]:
        from dape.report.chomsky import terminal_table

        return [terminal_table(_cells(self._rows, self._plan), self._plan.config)]


def _cells(rows: "list[Row]", plan: "Chomsky") -> list[Any]:
    from dape.evaluation.chomsky_scores import summarise

    return summarise(rows, plan.config, tasks=plan.tasks, methods=plan.methods, rates=plan.rates)


# After the work ------------------------------------------------------------------------------------------------------


def _report(plan: "Chomsky", failures: dict[str, str]) -> int:
    """Files first, then the terminal."""
    from dape.files import write_text
    from dape.report import chomsky
    from dape.report.drawing import save_figure

    cells = _cells(plan.collect(), plan)
    tell_failures(failures)
    if not cells:
        return 1
    less = reduced(plan)
    write_text(plan.out / "table.md", chomsky.markdown(cells, plan.config, seeds=plan.seeds, reduced=less))
    save_figure(chomsky.length_figure(cells, plan.config, reduced=less), plan.out / "lengths")
    save_figure(chomsky.score_map(cells, plan.config, reduced=less), plan.out / "scores")
    open_console().print(chomsky.terminal_table(cells, plan.config))
    print()
    for sentence in [*chomsky.conditions(plan.config, seeds=plan.seeds, reduced=less), *chomsky.not_learned(cells)]:
        print(sentence)
    print(f"wrote results.jsonl, table.md, lengths.png, lengths.svg, scores.png, scores.svg in {plan.out}")
    return 1 if failures else 0
