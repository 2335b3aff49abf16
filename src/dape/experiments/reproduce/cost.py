"""Estimates of an experiment's cost: operations, GPU-hours, memory. Imports torch to count parameters."""

from dataclasses import dataclass, replace

from dape.experiments.executor import START_SECONDS
from dape.experiments.reproduce.catalogue import PaperExperiment
from dape.experiments.reproduce.scales import CHE, Scale
from dape.results.numbers import count
from dape.tasks.chomsky.config import WIDTHS, CheConfig
from dape.training.cost import A800_PEAK, UTILISATION, gpu_hours, training_cost

GPT2_VOCABULARY = 50304
AT_ONCE = 32
"""Sequences per GPU in the paper, for which memory is estimated."""

CORE = 25e9
"""Operations per second that a core of our machine (AMD EPYC, Zen 3) reached in training the small models."""
LONG = 24 * 60
"""Minutes. Longer times are not shown for a CPU."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    runs: int
    flops: float
    memory_bytes: int
    """The largest run's, with 32 sequences at a time."""
    parameters: int
    """The largest model's."""

    @property
    def gpu_hours(self) -> float:
        return gpu_hours(self.flops)

    def lines(self) -> list[str]:
        rate = f"A800, {A800_PEAK / 1e12:.0f} TFLOP/s in bfloat16 at {100 * UTILISATION:.0f}%"
        minutes = self.flops / (2 * CORE) / 60 + self.runs * START_SECONDS / 120
        hours = f"{self.gpu_hours:.3g} ({rate}; small models reach less)" if self.gpu_hours > 0.1 else "below 0.1"
        return [
            f"{count(self.runs, 'run')}; the largest model has {in_words(self.parameters)} parameters",
            f"operations: {self.flops:.3g}",
            f"GPU-hours: {hours}",
            *([f"two cores: about {count(round(minutes), 'minute')}"] if minutes < LONG else []),
            f"memory: {self.memory_bytes / 1e9:.2f} GB for {AT_ONCE} sequences at a time, on one device",
        ]


def cost_of(experiment: PaperExperiment, scale: Scale, *, seeds: int) -> Estimate:
    if experiment.kind == "che":
        return _che_cost(experiment, scale, seeds)
    runs, flops, memory, parameters = 0, 0.0, 0, 0
    for size in experiment.sizes:
        for length in experiment.train_lengths:
            for arm in experiment.arms:
                model = replace(scale.model(size, length), encoding=arm.method, encoding_options=dict(arm.options))
                model = model if size in scale.models else replace(model, vocabulary=GPT2_VOCABULARY)
                train, evaluation = scale.train(size, length), scale.evaluation(experiment, length)
                tokens = evaluation.windows * sum(evaluation.lengths)
                parts = max(1, train.batch // AT_ONCE)
                cost = training_cost(model, replace(train, accumulate=parts), evaluation_tokens=tokens)
                runs, flops = runs + seeds, flops + seeds * cost.flops
                memory, parameters = max(memory, cost.memory_bytes), max(parameters, cost.parameters)
    return Estimate(runs=runs, flops=flops, memory_bytes=memory, parameters=parameters)


def _che_cost(experiment: PaperExperiment, scale: Scale, seeds: int) -> Estimate:
    """Counts 6 operations per weight and token in training, and 2 in tests. A task has about twice as many tokens as
    its length, half of them for the answer."""
    settings = CHE[scale.name]
    layers, width = CheConfig.layers, WIDTHS[settings.width]
    weights = layers * 12 * width**2
    trained = settings.steps * settings.batch * 2 * 20.5
    tested = settings.samples * 2 * sum(settings.lengths)
    runs = len(settings.tasks) * len(settings.methods) * len(settings.rates) * seeds
    flops = runs * weights * (6 * trained + 2 * tested)
    memory = weights * 16 + settings.batch * 120 * layers * 17 * width * 4
    return Estimate(runs=runs, flops=flops, memory_bytes=memory, parameters=weights)


def in_words(count: int) -> str:
    for size, name in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if count >= size:
            return f"{count / size:.3g} {name}"
    return str(count)
