"""Questions in text: a statement within filler text, and at the end its beginning once more, as the question.

passkey   The pass key is "73914"               question: The pass key is "
recall    haku "mata"   (several such pairs)    question: haku "

The filler is held-out text of the kind that the model was trained on. Question and statement begin with equal tokens,
so a model that copies what followed them before can answer. A sample is a function of (seed, length, depth, index) and
the corpus, but not of the model.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dape.data.store import TokenStream
from dape.data.tokenizer import Tokenizer
from dape.errors import UsageError
from dape.files import sha256_of
from dape.tasks.recall.config import Task, TextConfig

KEY_DIGITS = 5
CONSONANTS, VOWELS, SYLLABLES = "bdfghjklmnprstvz", "aeiou", 2
CLOSE = '"\n'
MOST_ATTEMPTS = 1000


def opening(name: str) -> str:
    """The beginning of a statement, which is also the question. It ends in a quotation mark, so that no tokenizer joins
    the answer with the text before it."""
    return f'\n{name} "'


@dataclass(frozen=True)
class Sample:
    tokens: np.ndarray
    """length + 1 tokens, with the answer at the end."""
    twin: np.ndarray
    """The same tokens, but the context states another answer. Question and answer at the end are unchanged."""
    answer: int
    """Number of tokens of the answer."""


@dataclass(frozen=True)
class _Draw:
    """The random parts of a sample, except where the other statements are."""

    names: list[str]
    values: list[str]
    """The value that is stated for each name. The question asks for the first."""
    other: str
    """The value that the twin states for the first name."""
    filler: np.ndarray


class TextTask:
    """Samples of one task on one corpus."""

    def __init__(self, task: Task, config: TextConfig, stream: TokenStream, tokenizer: Tokenizer) -> None:
        self.task, self.config, self.stream, self.tokenizer = task, config, stream, tokenizer
        self._close = tokenizer.encode(CLOSE)

    @property
    def statements(self) -> int:
        return self.config.pairs if self.task == "recall" else 1

    def data_hash(self, corpus_hash: str) -> str:
        """Hash of what defines the samples."""
        config = self.config
        facts = [self.task, 1, opening("NAME"), CLOSE, self.statements, config.samples, config.seed, corpus_hash]
        return sha256_of(json.dumps(facts))

    def samples(self, length: int, depth: float) -> list[Sample]:
        return [self.sample(length, depth, index) for index in range(self.config.samples)]

    def sample(self, length: int, depth: float, index: int) -> Sample:
        draw = self._draw(length, index)
        answer = self.tokenizer.encode(draw.values[0])
        question = np.concatenate([self.tokenizer.encode(opening(draw.names[0])), answer])
        first = round(depth * len(draw.filler))
        generator = np.random.default_rng([self.config.seed, index, 1])
        others = np.floor(generator.random(len(draw.names) - 1) * (len(draw.filler) + 1)).astype(int)
        cuts = [first, *others.tolist()]
        tokens, twin = (
            np.concatenate([*self._with_statements(draw.filler, cuts, draw.names, values), question])
            for values in (draw.values, [draw.other, *draw.values[1:]])
        )
        return Sample(tokens, twin, len(answer))

    def _with_statements(
        self, filler: np.ndarray, cuts: Sequence[int], names: Sequence[str], values: Sequence[str]
    ) -> Iterator[np.ndarray]:
        """The filler with a statement at each cut. Of several at one cut, the one that is asked for is the first."""
        before = 0
        for cut, name, value in sorted(zip(cuts, names, values, strict=True), key=lambda each: each[0]):
            yield filler[before:cut]
            yield self._statement(name, value)
            before = cut
        yield filler[before:]

    def _statement(self, name: str, value: str) -> np.ndarray:
        # Encoded in parts, so that the answer has the same tokens here and after the question.
        return np.concatenate([self.tokenizer.encode(opening(name)), self.tokenizer.encode(value), self._close])

    # Random parts ----------------------------------------------------------------------------------------------------

    def _draw(self, length: int, index: int) -> _Draw:
        """Draw names and values that the filler does not contain. All lengths and depths of an index have the same
        draw and filler with the same end, unless the filler of some length contains a word."""
        for names, values, other, end in self._candidates(index):
            room = length + 1 - self._needed(names, values)
            if room < 0:
                continue
            filler = self._filler(room, end)
            text = self.tokenizer.decode(filler)
            if not any(word in text for word in [*names, *values, other]):
                return _Draw(names, values, other, filler)
        raise UsageError(
            f"no text of {length} tokens for {self.task}: at least {self.shortest()} tokens are needed, and held-out "
            "text that does not mention the answers"
        )

    def _candidates(self, index: int) -> Iterator[tuple[list[str], list[str], str, int]]:
        """Draws of names, values, the twin's value for the first name, and the end of the filler."""
        for attempt in range(MOST_ATTEMPTS):
            generator = np.random.default_rng([self.config.seed, index, 0, attempt])
            names, values, other = self._words(generator)
            if len(self.tokenizer.encode(other)) == len(self.tokenizer.encode(values[0])):  # the twin must be as long
                yield names, values, other, int(generator.integers(len(self.stream)))

    def _words(self, generator: np.random.Generator) -> tuple[list[str], list[str], str]:
        if self.task == "passkey":
            digits = generator.integers(0, 10, KEY_DIGITS)
            shifted = (digits + generator.integers(1, 10, KEY_DIGITS)) % 10  # differs in every digit
            return ["The pass key is"], [_joined(digits)], _joined(shifted)
        pairs = self.config.pairs
        # All begin with different letters, so that the first letter identifies a value.
        initials = generator.permutation(list(CONSONANTS))
        values = [_word(generator, str(initial)) for initial in initials[: pairs + 1]]
        initials = generator.permutation(list(CONSONANTS))
        names = [_word(generator, str(initial)) for initial in initials[:pairs]]
        return names, values[:-1], values[-1]

    def _needed(self, names: Sequence[str], values: Sequence[str]) -> int:
        """Number of tokens of all statements, the question and its answer."""
        stated = sum(len(self._statement(name, value)) for name, value in zip(names, values, strict=True))
        return stated + len(self._statement(names[0], values[0])) - len(self._close)

    def _filler(self, tokens: int, end: int) -> np.ndarray:
        """``tokens`` tokens of held-out text up to ``end``; before the first token comes the last."""
        available = len(self.stream)
        if available < tokens:
            raise UsageError(f"the held-out text has {available} tokens, too few to fill a text with {tokens}")
        return self.stream.gather((end - tokens + np.arange(tokens)) % available)

    def shortest(self) -> int:
        """The smallest length at which the statements, question and answer of every sample fit."""
        drawn = (next(self._candidates(index)) for index in range(self.config.samples))
        return max(self._needed(names, values) for names, values, _, _ in drawn) - 1


def _joined(digits: np.ndarray) -> str:
    return "".join(map(str, digits.tolist()))


def _word(generator: np.random.Generator, initial: str) -> str:
    """A word such as haku: syllables of a consonant and a vowel."""
    word = initial + generator.choice(list(VOWELS))
    for _ in range(SYLLABLES - 1):
        word += generator.choice(list(CONSONANTS)) + generator.choice(list(VOWELS))
    return word
