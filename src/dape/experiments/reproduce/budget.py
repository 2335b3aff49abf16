"""The seeds and steps of an experiment that fit into a number of hours, estimated from a few timed steps."""

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from dape.errors import UsageError
from dape.evaluation.config import EvalConfig
from dape.experiments.executor import START_SECONDS
from dape.experiments.reproduce.plan import Reproduction, Trial

TIMED_STEPS = 3
SEEDS_FOR_A_TEST = 3
LEAST_SHARE = 0.02
"""The least fraction of the scale's steps: with fewer, nothing is learned."""

Kind = tuple[str, str, int]
"""Arm, model size and training length: runs of one kind take equally long."""


@dataclass(frozen=True)
class Speed:
    step: float
    """Seconds of a training step."""
    test: float
    """Seconds of the whole evaluation."""


def kind_of(run: Trial) -> Kind:
    return run.arm.label, run.size, run.train_length


def speeds_of(plan: Reproduction, threads: int, *, watch: Callable[[str], None]) -> dict[Kind, Speed]:
    """Time a few steps and one long window of every kind of run."""
    kinds = {kind_of(run): run for run in plan.runs() if run.seed == 0}
    found = {}
    for kind, run in kinds.items():
        watch(f"timing {' '.join(map(str, kind))}")
        found[kind] = _speed(plan, run, threads)
    return found


def _speed(plan: Reproduction, run: Trial, threads: int) -> Speed:
    import torch

    from dape.data.store import Corpus
    from dape.evaluation.perplexity import measure
    from dape.training.language_model import LanguageModelTrainer

    job, marks = plan.job(run, threads), [time.perf_counter()]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with tempfile.TemporaryDirectory() as folder:
            corpus = Corpus.open(Path(plan.data))
            trainer = LanguageModelTrainer(Path(folder), job.run, corpus, device=torch.device(plan.device))
            trainer.run(
                watch=lambda _: marks.append(time.perf_counter()),
                stop=lambda: len(marks) > min(TIMED_STEPS, job.run.train.steps),
            )
        begin, longest = time.perf_counter(), max(job.evaluation.lengths)
        list(measure(trainer.model.eval(), corpus.validation, replace(job.evaluation, lengths=(longest,), windows=1)))
        window = time.perf_counter() - begin
    finally:
        torch.set_num_threads(before)
    step = min(b - a for a, b in pairwise(marks))
    return Speed(step, window * _windows(job.evaluation))


def _windows(evaluation: EvalConfig) -> float:
    """The cost of the evaluation, in windows of the greatest length."""
    return evaluation.windows * sum(evaluation.lengths) / max(evaluation.lengths)


def fit(plan: Reproduction, speeds: Mapping[Kind, Speed], hours: float, jobs: int) -> tuple[Reproduction, list[str]]:
    """The plan that fits into the hours, and descriptions of what was cut. Raises UsageError if too little would be
    left.

    Seeds are cut first, down to the three that a test needs; then steps, down to a quarter; then the other seeds; then
    further steps.
    """
    full = plan.scale.steps or 0
    if not full:
        raise UsageError(
            f"`budget`: scale {plan.scale.name} takes its number of steps from the paper; choose smoke, cpu or night"
        )
    room, each = hours * 3600 * jobs, [speeds[kind_of(run)] for run in plan.runs() if run.seed == 0]
    fixed, per_step = sum(s.test + START_SECONDS for s in each), sum(s.step for s in each)

    def steps_for(seeds: int) -> int:
        """The number of steps that fit, at most that of the scale."""
        return min(full, int((room / seeds - fixed) / per_step + 1e-6))

    options = [*range(plan.seeds, min(SEEDS_FOR_A_TEST, plan.seeds) - 1, -1)]
    chosen = next((n for n in options if steps_for(n) >= full), None)
    if chosen is None:
        fewer = range(options[-1], 0, -1)
        chosen = next((n for n in fewer if steps_for(n) >= full / 4), 1)
    steps = steps_for(chosen)
    least = max(1, round(LEAST_SHARE * full))
    if steps < least:
        needed = (fixed + least * per_step) / 3600 / jobs
        raise UsageError(
            f"`budget` {hours:g}: too little for {plan.experiment.id} at scale {plan.scale.name} on this machine; "
            f"one seed with {least} of {full} steps needs {needed:.2g} hours"
        )
    cut = [f"{chosen} of {plan.seeds} seeds"] if chosen < plan.seeds else []
    cut += [f"{steps} of {full} steps"] if steps < full else []
    return replace(plan, seeds=chosen, scale=replace(plan.scale, steps=steps)), cut
