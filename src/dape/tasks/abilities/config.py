"""How models are trained and tested on generated tests. No torch here: the command line reads it."""

from dataclasses import dataclass

from dape.errors import UsageError, check_counts
from dape.tasks.abilities.catalogue import find
from dape.tasks.recall.config import doublings
from dape.tasks.small_models import SmallModels


@dataclass(frozen=True, kw_only=True)
class AbilityConfig(SmallModels):
    """Every test, method and seed has these settings."""

    tests: tuple[str, ...]
    lengths: tuple[int, ...] = ()
    """Test lengths; by default the training length and its doublings up to 32 times."""
    samples: int = 32
    """Test sequences per length, the same for every method and seed."""

    @property
    def test_lengths(self) -> tuple[int, ...]:
        return self.lengths or doublings(self.train_length)

    def check(self) -> None:
        if not self.tests:
            raise UsageError("`tests` needs at least one test")
        check_counts(self, "samples")
        self.check_sizes()
        if len(set(self.test_lengths)) < len(self.test_lengths):
            raise UsageError("`lengths` has a value twice")
        for name in self.tests:
            shortest = find(name).load().shortest
            for what, length in (("train_length", self.train_length), ("lengths", min(self.test_lengths))):
                if length < shortest:
                    raise UsageError(f"`{what}` {length} is too short for {name}; it must be at least {shortest}")
