"""Every experiment of the paper: what was varied, on which text, and where its numbers are. No torch here.

To add one, add an entry to ``EXPERIMENTS``, and its claims to claims.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dape.errors import UsageError, did_you_mean
from dape.tasks.chomsky.config import PAPER_METHODS

Kind = Literal["language", "che", "time", "maps"]

DAPE_OF_THE_PAPER = ("dape-alibi", "dape-kerple", "dape-fire")
BASELINES = ("nope", "rope", "yarn", "randomized-rope", "t5", "alibi", "kerple", "fire", *DAPE_OF_THE_PAPER)
"""The methods of Figures 2 to 4, from the section on baselines: the paper's text does not have the legends."""


@dataclass(frozen=True)
class Arm:
    """One of the methods that an experiment compares."""

    method: str
    """A name of `dape list`."""
    variant: str = ""
    """The name of the options in rows and in the paper's tables, where these are varied."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def label(self) -> str:
        return f"{self.method} ({self.variant})" if self.variant else self.method


@dataclass(frozen=True, kw_only=True)
class PaperExperiment:
    id: str
    title: str
    where: str
    """The figure or table of the paper."""
    arms: tuple[Arm, ...] = ()
    kind: Kind = "language"
    sizes: tuple[str, ...] = ("125m",)
    """Presets of the paper's models."""
    train_lengths: tuple[int, ...] = (512,)
    longest: int = 8192
    seeds: int = 1
    """The paper's number of seeds."""
    data: str = "Arxiv"
    """The paper's corpus."""
    published: tuple[str, ...] = ()
    """Tables and statements of dape.results.paper with its numbers."""
    unknown: str = ""
    """What the paper does not say, and what we assume."""
    tasks: int = 1

    @property
    def runs(self) -> int:
        """The number of runs in the paper, as far as it says."""
        return max(1, len(self.arms)) * len(self.sizes) * len(self.train_lengths) * self.seeds * self.tasks


def arms(*methods: str) -> tuple[Arm, ...]:
    return tuple(Arm(method) for method in methods)


def _forms(base: str, *variants: str) -> tuple[Arm, ...]:
    return tuple(Arm(f"dape-{base}", variant, {"variant": variant}) for variant in variants)


def _widths(base: str, *widths: int) -> tuple[Arm, ...]:
    return tuple(Arm(f"dape-{base}", f"hidden={width}", {"hidden": width}) for width in widths)


_LARGE = arms("rope", "t5", "alibi", "kerple", "dape-kerple")
_SIZE_UNKNOWN = "model size not stated: taken as 125M"
_DATA_UNKNOWN = "corpus not stated: perplexities near 20 suggest Books3"

EXPERIMENTS: dict[str, PaperExperiment] = {
    e.id: e
    for e in (
        PaperExperiment(
            id="baselines",
            title="all encodings, trained at 128 and 512",
            where="Figure 2",
            arms=arms(*BASELINES),
            train_lengths=(128, 512),
            published=("P1", "P2"),
            unknown="settings of yarn and randomized-rope; the figure's curves exist only as a picture",
        ),
        PaperExperiment(
            id="train-1024",
            title="all encodings, trained at 1024",
            where="Figure 3",
            arms=arms(*BASELINES),
            train_lengths=(1024,),
            published=("P3",),
            unknown="corpus not stated: the values suggest Arxiv",
        ),
        PaperExperiment(
            id="model-size",
            title="a larger model",
            where="Figure 4",
            arms=arms(*BASELINES),
            sizes=("125m", "350m"),
            train_lengths=(128, 512),
            published=("P4",),
        ),
        PaperExperiment(
            id="variants",
            title="forms of DAPE",
            where="Figure 5",
            arms=(Arm("kerple"), *_forms("kerple", "add_residual", "concat", "concat_residual")),
            train_lengths=(128, 512),
            published=("P5",),
            unknown="corpus not stated: the values suggest Arxiv",
        ),
        PaperExperiment(
            id="hidden-width",
            title="width of f",
            where="Figure 6",
            arms=(Arm("alibi"), *_widths("alibi", 4, 16, 32, 64)),
            train_lengths=(128, 512),
            published=("P6",),
        ),
        PaperExperiment(
            id="time-cost",
            title="time of an iteration",
            where="Table 1",
            kind="time",
            arms=arms("rope", "t5", "alibi", "kerple", "fire", "dape-kerple"),
            sizes=("350m", "2.7b", "6.7b"),
            published=("A1", "P8"),
            unknown="forward only or a whole training step: both are measured",
        ),
        PaperExperiment(
            id="che",
            title="Chomsky-hierarchy tasks",
            where="Table 2",
            kind="che",
            arms=arms(*PAPER_METHODS),
            sizes=("encoder",),
            train_lengths=(40,),
            tasks=14,
            data="generated",
            published=("A2",),
            unknown="learning rate, seeds, mean or best of them, and whether DAPE had randomised positions",
        ),
        PaperExperiment(
            id="seeds",
            title="error bars and significance",
            where="Table 3",
            arms=arms("rope", "t5", "alibi", "dape-alibi", "kerple", "dape-kerple", "fire", "dape-fire"),
            seeds=3,
            published=("A3",),
            unknown="which test was used, and whether the deviations are of a sample or a population",
        ),
        PaperExperiment(
            id="data-adaptive",
            title="encodings that read content",
            where="Table 4",
            arms=arms("transformer-xl", "cope", "dape-kerple"),
            train_lengths=(128,),
            data="Books3",
            published=("A4",),
            unknown=_SIZE_UNKNOWN,
        ),
        PaperExperiment(
            id="bias-ablation",
            title="what f sees",
            where="Table 5",
            arms=(Arm("kerple"), *_forms("kerple", "bias_only", "concat_residual")),
            data="Books3",
            published=("A5",),
            unknown=_SIZE_UNKNOWN,
        ),
        PaperExperiment(
            id="2.7b",
            title="2.7 billion parameters",
            where="Table 6",
            arms=_LARGE,
            sizes=("2.7b",),
            longest=4096,
            data="Books3",
            published=("A6",),
            unknown=f"{_DATA_UNKNOWN}; batch and steps not stated, and clearly fewer than for 125M",
        ),
        PaperExperiment(
            id="6.7b",
            title="6.7 billion parameters",
            where="Table 7",
            arms=_LARGE,
            sizes=("6.7b",),
            longest=2048,
            data="Books3",
            published=("A7",),
            unknown=f"{_DATA_UNKNOWN}; batch and steps not stated, and clearly fewer than for 125M",
        ),
        PaperExperiment(
            id="bias-maps",
            title="what DAPE adds to each score",
            where="Figures 1 and B.1 to B.15",
            kind="maps",
            arms=arms("dape-kerple"),
            unknown="which layer Figure 1 shows",
        ),
    )
}


def find(id: str) -> PaperExperiment:
    if id in EXPERIMENTS:
        return EXPERIMENTS[id]
    raise UsageError(f"{id}: no such experiment.{did_you_mean(id, EXPERIMENTS)} There are: {', '.join(EXPERIMENTS)}")
