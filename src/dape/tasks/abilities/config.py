"""How models are trained and tested on generated tests. No torch here: the command line reads it."""

from dataclasses import dataclass

from dape.errors import UsageError
from dape.tasks.abilities.catalogue import find
from dape.tasks.recall.config import check_counts, doublings


@dataclass(frozen=True, kw_only=True)
class AbilityConfig:
    """Every test, method and seed has these settings."""

    tests: tuple[str, ...]
    lengths: tuple[int, ...] = ()
    """Test lengths; by default the training length and its doublings up to 32 times."""
    samples: int = 32
    """Test sequences per length, the same for every method and seed."""
    train_length: int = 64
    """Longest training sequence."""
    layers: int = 2
    width: int = 64
    heads: int = 4
    steps: int = 1000
    batch: int = 16
    """Training sequences per step, if they are of the longest; shorter ones are proportionally more."""
    lr: float = 3e-3

    @property
    def test_lengths(self) -> tuple[int, ...]:
        return self.lengths or doublings(self.train_length)

    @property
    def train_tokens(self) -> int:
        """That a model reads in training, at most: a step is never more than a whole batch of the longest."""
        return self.steps * self.batch * self.train_length

    def check(self) -> None:
        if not self.tests:
            raise UsageError("`tests` needs at least one test")
        check_counts(self, "samples", "layers", "width", "heads", "steps", "batch")
        if not 0 < self.lr < 1:
            raise UsageError(f"`lr` must be between 0 and 1, got {self.lr}")
        if len(set(self.test_lengths)) < len(self.test_lengths):
            raise UsageError("`lengths` has a value twice")
        for name in self.tests:
            shortest = find(name).load().shortest
            for what, length in (("train_length", self.train_length), ("lengths", min(self.test_lengths))):
                if length < shortest:
                    raise UsageError(f"`{what}` {length} is too short for {name}; it must be at least {shortest}")
