"""The scales of a reproduction: how much smaller it is than the paper's experiments. No torch here.

A scale divides all lengths and the number of scored tokens by the same number, so that an evaluation reaches as many
training lengths as in the paper (up to 64). A step reads the same number of tokens at every training length.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dape.config.load import read_preset
from dape.errors import UsageError, did_you_mean
from dape.evaluation.config import EvalConfig
from dape.experiments.reproduce.catalogue import PaperExperiment
from dape.models.config import DecoderConfig
from dape.tasks.chomsky.catalogue import PAPER_TASKS
from dape.tasks.chomsky.config import LONGEST, PAPER_METHODS, PAPER_RATES, PAPER_SAMPLES, PAPER_STEPS, CheConfig
from dape.training.config import Precision, TrainConfig

ScaleName = Literal["smoke", "cpu", "night", "gpu", "paper"]
SCORED = 256
"""Tokens that the paper scores at the end of every window."""
PAPER_LENGTH = 512
"""The training length of the presets' batch."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    name: str
    divide: int
    """The divisor of all lengths."""
    windows: int
    models: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    """Layers, width and heads that replace a preset's."""
    steps: int | None = None
    """Replaces the preset's, as do the following."""
    tokens: int | None = None
    """Tokens per step."""
    lr: float | None = None
    precision: Precision = "fp32"
    reach: int = 1
    """Evaluate up to at least this many training lengths."""
    in_context: bool = False
    """Also measure how much better a token is predicted after 100 tokens than after 10."""
    data: str = ""
    """The default text; empty if it must be given."""
    tokenizer: str = "bytes"
    """The tokenizer for text that is not prepared."""
    cost: str = ""
    """A description of the cost of one experiment."""
    caveat: str = ""
    """A limitation that is stated beside the verdicts."""

    def model(self, size: str, train_length: int) -> DecoderConfig:
        given: dict[str, Any] = read_preset(size)["model"]
        if size in self.models:
            layers, width, heads = self.models[size]
            given = {"layers": layers, "width": width, "heads": heads}
        return DecoderConfig(**{**given, "train_length": self.length(train_length)})

    def train(self, size: str, train_length: int) -> TrainConfig:
        paper = TrainConfig(**read_preset(size)["train"])
        tokens = self.tokens or paper.batch * PAPER_LENGTH
        chosen: dict[str, Any] = {"batch": max(1, tokens // self.length(train_length)), "precision": self.precision}
        if self.steps is not None:
            chosen |= {"steps": self.steps, "validate_every": 0, "save_every": self._save_every(self.steps)}
        if self.lr is not None:
            chosen["lr"] = self.lr
        return replace(paper, keep=1, **chosen)

    @staticmethod
    def _save_every(steps: int) -> int:
        """Four times in a run, and at least every 200 steps, so that a killed run loses only minutes."""
        return min(max(steps // 4, 1), 200)

    def evaluation(self, experiment: PaperExperiment, train_length: int) -> EvalConfig:
        """At the training length and its doublings. At most as many tokens are scored as the training length has."""
        shortest = self.length(train_length)
        longest = max(self.length(experiment.longest), self.reach * shortest)
        lengths = tuple(shortest << n for n in range((longest // shortest).bit_length()))
        last_k = min(SCORED // self.divide, shortest)
        return EvalConfig(lengths=lengths, last_k=last_k, windows=self.windows, reach=lengths[-1])

    def length(self, of_the_paper: int) -> int:
        return of_the_paper // self.divide

    def tokens_seen(self, size: str, train_length: int) -> int:
        """Tokens that one run is trained on."""
        train = self.train(size, train_length)
        return train.steps * train.batch * self.length(train_length)

    def with_tokens(self, tokens: int) -> "Scale":
        """The scale with another number of tokens for each run."""
        if self.tokens is None:
            raise ValueError(
                f"scale {self.name} takes its steps from the paper: the number of tokens cannot be changed"
            )
        return replace(self, steps=max(1, round(tokens / self.tokens)))

    def reductions(self, experiment: PaperExperiment) -> list[str]:
        """Descriptions of what is less than in the paper."""
        if self.name == "paper":
            return []
        words = [f"lengths divided by {self.divide}"] if self.divide > 1 else []
        for size in experiment.sizes:
            if size in self.models:
                paper, (layers, width, _) = read_preset(size)["model"], self.models[size]
                words.append(f"{size}: {layers} layers of width {width}, not {paper['layers']} of {paper['width']}")
        train, full = self.train(experiment.sizes[0], PAPER_LENGTH), read_preset(experiment.sizes[0])["train"]
        tokens = train.steps * train.batch * self.length(PAPER_LENGTH)
        all_tokens = full["steps"] * full["batch"] * PAPER_LENGTH
        words += [self.caveat] if self.caveat else []
        words.append(f"{train.steps} steps and {tokens:.2g} tokens, not {full['steps']} and {all_tokens:.2g}")
        return words


SCALES: dict[str, Scale] = {
    scale.name: scale
    for scale in (
        Scale(
            name="smoke",
            divide=16,
            windows=4,
            models={"125m": (2, 32, 4), "350m": (3, 48, 6), "2.7b": (3, 64, 8), "6.7b": (3, 80, 10)},
            steps=4,
            tokens=128,
            lr=2e-3,
            data="stdlib",
            cost="under two minutes; shows that everything runs",
            caveat="nothing is learned at this scale, so that verdicts say nothing about the claims",
        ),
        Scale(
            name="cpu",
            divide=4,
            windows=96,
            models={"125m": (4, 128, 8), "350m": (8, 160, 10), "2.7b": (8, 256, 16), "6.7b": (8, 320, 20)},
            steps=400,
            tokens=1024,
            lr=2e-3,
            data="stdlib",
            cost="up to about an hour on two cores",
        ),
        Scale(
            name="night",
            divide=4,
            windows=128,
            models={"125m": (4, 128, 8), "350m": (5, 256, 8), "2.7b": (6, 384, 12), "6.7b": (8, 384, 12)},
            steps=4000,
            tokens=2048,
            lr=2e-3,
            reach=32,
            in_context=True,
            data="stdlib",
            tokenizer="bpe:4096",
            cost="8 million tokens a run: a night on two cores",
        ),
        Scale(
            name="gpu",
            divide=1,
            windows=160,
            steps=5000,
            tokens=64 * PAPER_LENGTH,
            precision="bf16",
            cost="the paper's models for a fortieth of its tokens: hours to days on one GPU",
        ),
        Scale(name="paper", divide=1, windows=160, precision="bf16", cost="as in the paper; a dry run says how much"),
    )
}


def find(name: str) -> Scale:
    if name in SCALES:
        return SCALES[name]
    raise UsageError(f"`scale` {name}: no such scale.{did_you_mean(name, SCALES)} There are: {', '.join(SCALES)}")


# Chomsky-hierarchy tasks ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CheScale:
    """Settings of `dape che` at a scale."""

    tasks: tuple[str, ...]
    methods: tuple[str, ...] = PAPER_METHODS
    steps: int = PAPER_STEPS
    rates: tuple[float, ...] = PAPER_RATES
    width: Literal["paper", "cpu"] = "paper"
    hidden: int = CheConfig.hidden
    batch: int = CheConfig.batch
    samples: int = PAPER_SAMPLES
    lengths: tuple[int, ...] = tuple(range(1, LONGEST + 1))


_SEVEN = tuple(method for method in PAPER_METHODS if not method.endswith(("learned", "sinusoidal", "-xl")))
_FIVE_TASKS = ("even_pairs", "stack_manipulation", "reverse_string", "missing_duplicate_string", "bucket_sort")
_ARMS_OF_THREE_BASES = tuple(
    f"{kind}{base}" for base in ("alibi", "kerple", "fire") for kind in ("", "randomized-", "dape-", "randomized-dape-")
)
_FEW_LENGTHS = (10, 20, 30, 40, 41, 60, 80, 120, 160, 240, 320, 500)

CHE: dict[str, CheScale] = {
    "smoke": CheScale(
        tasks=("even_pairs", "bucket_sort"),
        methods=("randomized-alibi", "dape-alibi"),
        steps=4,
        rates=(1e-3,),
        width="cpu",
        hidden=4,
        batch=8,
        samples=8,
        lengths=(20, 41, 60),
    ),
    "cpu": CheScale(
        tasks=_FIVE_TASKS,
        methods=_SEVEN,
        steps=1000,
        rates=(1e-3,),
        width="cpu",
        hidden=16,
        batch=32,
        samples=64,
        lengths=_FEW_LENGTHS,
    ),
    "night": CheScale(
        tasks=_FIVE_TASKS,
        methods=_ARMS_OF_THREE_BASES,
        steps=5000,
        rates=(1e-3, 3e-4),
        width="cpu",
        batch=64,
        samples=128,
        lengths=_FEW_LENGTHS,
    ),
    "gpu": CheScale(tasks=PAPER_TASKS, steps=20_000, rates=(3e-4,), lengths=tuple(range(10, LONGEST + 1, 10))),
    "paper": CheScale(tasks=PAPER_TASKS),
}
