"""Scores of the Chomsky benchmark by task and method: best learning rate, mean, spread, the paper's. No torch here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from dape.results.records import Row
from dape.tasks.chomsky.catalogue import TASKS
from dape.tasks.chomsky.config import CheConfig


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A method on a task, at the learning rate that was best in distribution."""

    task: str
    method: str
    lr: float
    rates: int
    """Number of learning rates that were tried."""
    familiar: float
    """Mean accuracy in distribution, over seeds and lengths."""
    scores: dict[int, float]
    """Mean accuracy over the lengths beyond training, by seed."""
    curve: dict[int, float]
    """Mean accuracy over seeds, by length, in distribution too."""
    paper: float | None

    @property
    def mean(self) -> float:
        return fmean(self.scores.values())

    @property
    def std(self) -> float | None:
        """Sample standard deviation; None for one seed."""
        return stdev(self.scores.values()) if len(self.scores) > 1 else None

    @property
    def best(self) -> float:
        return max(self.scores.values())

    @property
    def chance(self) -> float:
        return TASKS[self.task].chance


@dataclass(frozen=True)
class Run:
    """The measurements of one run, by length."""

    accuracy: dict[int, float]
    nll: dict[int, float]

    def familiar(self, config: CheConfig) -> tuple[float, float]:
        """Accuracy in distribution, then minus the loss there, which ranks runs of equal accuracy."""
        lengths = config.familiar_lengths
        losses = [self.nll[n] for n in lengths if n in self.nll]
        return fmean(self.accuracy[n] for n in lengths), -fmean(losses) if losses else 0.0

    def score(self, config: CheConfig) -> float:
        return fmean(self.accuracy[n] for n in config.scored_lengths)


def summarise(
    rows: Iterable[Row], config: CheConfig, *, tasks: Sequence[str], methods: Sequence[str], rates: Sequence[float]
) -> list[Cell]:
    """A cell for each task and method with a finished run, in the order given."""
    runs = runs_of(rows, config)
    return [
        cell
        for task in tasks
        for method in methods
        if (cell := _cell(task, method, {lr: runs.get((task, method, lr), {}) for lr in rates}, config))
    ]


def summarise_all(rows: Sequence[Row], train_length: int) -> tuple[CheConfig, list[Cell]]:
    """All cells of the rows of one benchmark, and the settings that they imply: lengths and ``compat`` are those of the
    rows. No cells without lengths both within and beyond training."""
    compats = {row.extra.get("compat", "") for row in rows}
    config = CheConfig(
        train_length=train_length,
        lengths=tuple(sorted({row.length for row in rows})),
        compat=compats.pop() if len(compats) == 1 else "",
    )
    if not config.scored_lengths or not config.familiar_lengths:
        return config, []
    tasks, methods = (dict.fromkeys(names) for names in ((r.extra["task"] for r in rows), (r.method for r in rows)))
    rates = sorted({row.extra["lr"] for row in rows})
    return config, summarise(rows, config, tasks=list(tasks), methods=list(methods), rates=rates)


def runs_of(rows: Iterable[Row], config: CheConfig) -> dict[tuple[str, str, float], dict[int, Run]]:
    """Runs that were tested at every length, by (task, method, rate) and seed."""
    found: dict[tuple[str, str, float], dict[int, Run]] = {}
    for row in rows:
        of_rate = found.setdefault((row.extra["task"], row.method, row.extra["lr"]), {})
        run = of_rate.setdefault(row.seed, Run({}, {}))
        (run.accuracy if row.metric == "accuracy" else run.nll)[row.length] = row.value
    wanted = set(config.lengths)
    return {key: {seed: run for seed, run in of.items() if wanted <= set(run.accuracy)} for key, of in found.items()}


def _cell(task: str, method: str, by_rate: dict[float, dict[int, Run]], config: CheConfig) -> Cell | None:
    tried = {lr: seeds for lr, seeds in by_rate.items() if seeds}
    if not tried:
        return None

    def in_distribution(lr: float) -> tuple[float, float]:
        each = [run.familiar(config) for run in tried[lr].values()]
        return fmean(accuracy for accuracy, _ in each), fmean(nll for _, nll in each)

    lr = max(tried, key=in_distribution)
    seeds = tried[lr]
    return Cell(
        task=task,
        method=method,
        lr=lr,
        rates=len(tried),
        familiar=in_distribution(lr)[0],
        scores={seed: run.score(config) for seed, run in sorted(seeds.items())},
        curve={n: fmean(run.accuracy[n] for run in seeds.values()) for n in sorted(config.lengths)},
        paper=published().get((task, method)),
    )


def published() -> dict[tuple[str, str], float]:
    """The paper's accuracies, 0 to 1, by task and method."""
    from dape.results.paper import load

    return {(row.dataset, row.method): row.value / 100 for row in load("A2")}
