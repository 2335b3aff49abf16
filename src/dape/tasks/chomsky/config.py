"""Settings of the Chomsky-hierarchy benchmark. No torch and no numpy here: the command line imports this module."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from dape.errors import UsageError, check_counts, check_heads
from dape.tasks.chomsky.catalogue import Compat

Scale = Literal["paper", "cpu", "custom"]
WIDTHS: dict[str, int] = {"paper": 256, "cpu": 64}
"""64 is the width in DeepMind's example."""
LONGEST = 500
PAPER_STEPS, PAPER_SAMPLES = 200_000, 512
PAPER_RATES = (1e-4, 3e-4, 5e-4)
PAPER_METHODS = (
    *(f"randomized-{x}" for x in ("learned", "sinusoidal", "rope", "transformer-xl", "alibi", "kerple", "fire")),
    *(f"dape-{x}" for x in ("alibi", "kerple", "fire")),
)


@dataclass(frozen=True, kw_only=True)
class CheConfig:
    scale: Scale = "paper"
    width: int = WIDTHS["paper"]
    layers: int = 5
    heads: int = 8
    hidden: int = 64
    """Width of DAPE's f."""
    dropout: float = 0.1
    pool: int = 2048
    """The number of positions that randomised positions are drawn from."""
    computation: int = 0
    """Empty tokens between input and output, for each token of the input."""
    train_length: int = 40
    """Inputs have 1 to this many tokens in training."""
    steps: int = PAPER_STEPS
    batch: int = 128
    lengths: tuple[int, ...] = tuple(range(1, LONGEST + 1))
    """Test lengths. Those up to the training length choose the learning rate; greater ones make the score."""
    samples: int = PAPER_SAMPLES
    """Test examples per length, the same for every method and seed."""
    compat: Compat = ""
    """deepmind: dropout also in tests, scores from length 42 on, means over groups of 64 examples, a one-sided table
    for randomised transformer-xl, and the program's order in odds_first."""

    @property
    def first_scored(self) -> int:
        """The first length of the score. DeepMind's program cuts a list of lengths from 1 on at index 41, which leaves
        out length 41."""
        return self.train_length + (2 if self.compat == "deepmind" else 1)

    @property
    def scored_lengths(self) -> tuple[int, ...]:
        return tuple(n for n in self.lengths if n >= self.first_scored)

    @property
    def familiar_lengths(self) -> tuple[int, ...]:
        """Test lengths that also occur in training."""
        return tuple(n for n in self.lengths if n <= self.train_length)

    def check(self) -> None:
        sizes = ("width", "layers", "heads", "hidden", "pool")
        check_counts(self, *sizes, "train_length", "steps", "batch", "samples")
        check_heads(self.width, self.heads)
        if not 0 <= self.dropout < 1:
            raise UsageError(f"`dropout` must be at least 0 and below 1, got {self.dropout}")
        if self.computation < 0:
            raise UsageError(f"`computation` must be 0 or more, got {self.computation}")
        if self.compat not in get_args(Compat):
            raise UsageError(f"`compat`: {self.compat!r} is not known; the only choice is deepmind")
        self._check_lengths()

    def _check_lengths(self) -> None:
        if min(self.lengths, default=1) < 1:
            raise UsageError(f"`lengths`: a length is at least 1, got {min(self.lengths)}")
        if not self.scored_lengths:
            raise UsageError(
                f"`lengths` needs at least one length from {self.first_scored} on: the score is the accuracy beyond "
                f"the training length, {self.train_length}"
            )
        if not self.familiar_lengths:
            raise UsageError(
                f"`lengths` needs at least one length up to {self.train_length}, to choose the learning rate"
            )


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The settings in which runs differ."""

    task: str
    method: str
    seed: int
    lr: float

    @property
    def name(self) -> str:
        return f"{self.task}-{self.method}-lr{self.lr:g}-seed{self.seed}"


def check_rates(rates: tuple[float, ...]) -> None:
    if not rates:
        raise UsageError("`lr` needs at least one learning rate")
    for rate in rates:
        if not 0 < rate < math.inf:
            raise UsageError(f"`lr` must be positive, got {rate:g}")


def reductions(config: CheConfig, *, seeds: int, rates: Sequence[float], all_rates: int) -> list[str]:
    """Descriptions of what is smaller than in the paper, or than recommended."""
    full, rate = range(config.train_length + 1, LONGEST + 1), ", ".join(f"{lr:g}" for lr in rates)
    found = {
        f"width {config.width} instead of {WIDTHS['paper']}": config.width < WIDTHS["paper"],
        f"{config.layers} layers instead of {CheConfig.layers}": config.layers < CheConfig.layers,
        f"{config.hidden} hidden units of f instead of {CheConfig.hidden}": config.hidden < CheConfig.hidden,
        f"{config.steps} training steps instead of {PAPER_STEPS}": config.steps < PAPER_STEPS,
        f"{config.batch} examples a step instead of {CheConfig.batch}": config.batch < CheConfig.batch,
        f"{len(config.scored_lengths)} test lengths instead of {len(full)}": not set(full) <= set(config.lengths),
        f"{config.samples} test examples per length instead of {PAPER_SAMPLES}": config.samples < PAPER_SAMPLES,
        f"{seeds} seed{'s' if seeds > 1 else ''} instead of at least 3": seeds < 3,
        f"learning rate {rate} instead of the best of {all_rates}": len(rates) < all_rates,
    }
    return [text for text, holds in found.items() if holds]
