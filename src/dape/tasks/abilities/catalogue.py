"""The catalogue of tests: one line each. This module imports no numpy, so that the command line can read it."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dape.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from dape.tasks.abilities.base import Ability


@dataclass(frozen=True)
class Entry:
    name: str
    target: str
    """``module:Class`` within dape.tasks.abilities."""
    isolates: str
    """The ability that a model lacks if it learns the test at the training length and fails beyond."""

    def load(self) -> "Ability":
        module, _, name = self.target.partition(":")
        return getattr(importlib.import_module(f"dape.tasks.abilities.{module}"), name)()


_LINES = [
    Entry("last-value", "last_value:LastValue", "forgetting: of several values of a key the last one wins"),
    Entry("two-token-keys", "two_token_keys:TwoTokenKeys", "composition: a key is two neighbouring tokens"),
    Entry("power-gaps", "power_gaps:PowerGaps", "scale: pairs at all distances, by a power law"),
    Entry("needle", "needles:Needle", "retrieval: one marked text in noise (RULER, single)"),
    Entry("many-needles", "needles:ManyNeedles", "selection: one text among as many as there is room for (RULER, multi-key)"),
    Entry("variables", "variables:Variables", "tracing: up to three lookups, each from where the last one led (RULER)"),
    Entry("common-word", "words:CommonWord", "aggregation: the most common word of the whole context (RULER)"),
    Entry("frequent-words", "words:FrequentWords", "ranking: the three most frequent words in order (RULER)"),
    Entry("block-search", "block_search:BlockSearch", "addressing: a block by its label, then a place inside it"),
    Entry("counting", "counting:Counting", "counting: how often a symbol occurred, at growing distances"),
    Entry("copying", "copying:Copying", "alignment: the token at a fixed lag that was never seen"),
    Entry("addition", "addition:Addition", "alignment twice: digits at two lags, and a carry"),
]  # fmt: skip

ABILITIES: dict[str, Entry] = {entry.name: entry for entry in _LINES}
RULER = ("needle", "many-needles", "variables", "common-word", "frequent-words")
CORE = ("last-value", "power-gaps", "many-needles", "counting", "copying")
SETS = {"core": CORE, "ruler": RULER, "all": tuple(ABILITIES)}
"""A name for several tests."""


def find(name: str) -> Entry:
    if name in ABILITIES:
        return ABILITIES[name]
    hint = did_you_mean(name.lower(), [*ABILITIES, *SETS])
    raise UsageError(f"{name!r} is not a test.{hint} There are: {', '.join(ABILITIES)}; sets: {', '.join(SETS)}")


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """The tests of names and of sets, each once."""
    every = [test for name in names for test in SETS.get(name, (name,))]
    return tuple(dict.fromkeys(find(name).name for name in every))
