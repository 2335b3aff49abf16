"""The settings of a study and the treatments it compares. No torch here."""

from dataclasses import dataclass, field
from typing import Any, Literal

from dape.errors import UsageError, check_heads, did_you_mean
from dape.tasks.recall.config import RecallConfig

Trained = Literal["nothing", "adapter", "all"]
BASE = "base"
"""The model itself, in the place of a treatment."""


@dataclass(frozen=True, kw_only=True)
class Treatment:
    """Something done to a model that was trained short with rotary positions."""

    name: str
    about: str
    trained: Trained = "adapter"
    method: str = ""
    """The adapter, or what stands in for the rotation; nothing if there is neither."""
    options: dict[str, Any] = field(default_factory=dict)
    rope: Literal["keep", "remove", "yarn"] = "keep"
    """The model's own rotation; yarn only under an adapter."""
    scaling: Literal["", "linear", "yarn"] = ""
    """Without an adapter: by length / training length where nothing is trained, else by the greatest of these."""


def _adapter(name: str, about: str, method: str = "dape-kerple", **more: Any) -> Treatment:
    return Treatment(name=name, about=about, method=method, **more)


def _untrained(method: str, about: str) -> Treatment:
    return Treatment(name=method, about=about, trained="nothing", method=method)


TREATMENTS: dict[str, Treatment] = {
    t.name: t
    for t in (
        Treatment(name="pi", about="position interpolation, untuned", trained="nothing", scaling="linear"),
        Treatment(name="yarn", about="YaRN, untuned", trained="nothing", scaling="yarn"),
        _untrained("rerope", "ReRoPE: the lag ends at half the training length, untuned"),
        _untrained("self-extend", "Self-Extend: far positions in groups, untuned"),
        _adapter("dape-kerple", "A + f([A; B]), B of kerple"),
        _adapter("map-kerple", "A + f(B): the same without content", options={"variant": "bias_map"}),
        _adapter("kerple", "A + g B: a static bias that fades in", method="kerple"),
        _adapter("dape-alibi", "A + f([A; B]), B of alibi", method="dape-alibi"),
        _adapter("dape-fire", "A + f([A; B]), B of fire", method="dape-fire"),
        _adapter("dape-nope", "A + f(A): content alone", method="dape-nope"),
        _adapter("dape-kerple-no-rope", "A + f([A; B]), the rotation removed", rope="remove"),
        _adapter("dape-kerple-yarn", "A + f([A; B]) over YaRN", rope="yarn"),
        _adapter("map-kerple-yarn", "A + f(B) over YaRN", options={"variant": "bias_map"}, rope="yarn"),
        Treatment(name="fine-tuned", about="all weights tuned, the rotation as it is", trained="all"),
        Treatment(name="drope", about="DroPE: the rotation dropped, all weights tuned", trained="all", rope="remove"),
        Treatment(name="yarn-tuned", about="all weights tuned under YaRN", trained="all", scaling="yarn"),
    )
}
DEFAULT = ("pi", "yarn", "dape-kerple", "map-kerple", "kerple", "fine-tuned", "yarn-tuned")


def find(name: str) -> Treatment:
    if name in TREATMENTS:
        return TREATMENTS[name]
    hint = did_you_mean(name, TREATMENTS)
    raise UsageError(f"`treatments` {name}: no such treatment.{hint} There are: {', '.join(TREATMENTS)}")


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """Everything the numbers depend on, apart from text, treatment, length and seed."""

    task: Literal["text", "recall"] = "text"
    """What the models learn: text, tested by perplexity, or recall of values by their keys, tested by accuracy."""

    layers: int = 4
    width: int = 128
    heads: int = 8
    train_length: int = 64
    """Tokens at which the model itself is trained."""
    base_steps: int = 1000
    base_tokens: int = 1024
    """Per step."""
    base_lr: float = 2e-3
    steps: int = 300
    """Of every treatment that trains."""
    tokens: int = 2048
    """Per step, whatever the length."""
    lr: float = 1e-2
    """Of adapters."""
    fine_tuning_lr: float = 3e-4
    """Where all weights are tuned."""
    reach: int = 32
    """Evaluated up to so many training lengths."""
    windows: int = 64
    """Of text, or sequences of pairs, per length."""
    pairs: int = 8
    """Most pairs in a sequence of the task recall, and in its test."""

    def check(self) -> None:
        for name, value in vars(self).items():
            if name != "task" and not value > 0:
                raise UsageError(f"`{name}` must be positive, got {value}")
        check_heads(self.width, self.heads)
        if self.task == "recall":
            self.recall.check()

    @property
    def recall(self) -> RecallConfig:
        return RecallConfig(
            lengths=self.lengths, train_length=self.train_length, samples=self.windows, pairs=self.pairs, test_pairs=()
        )

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(self.train_length << n for n in range(self.reach.bit_length()))
