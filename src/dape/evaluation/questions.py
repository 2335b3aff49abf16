"""Questions in text. A statement, filler around it, and at the end the statement once more up to what it states.

passkey   The pass key is "73914"               asked: The pass key is "
recall    haku "mata"   (several such pairs)    asked: haku "

The filler is held-out text of the kind the model was trained on. Question and statement have the same wording, down to
the tokens, so that a model that copies what followed the last time can answer. Everything here is a function of its
arguments: a sample of (seed, length, depth, index) and of the corpus, but not of the model.
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
    """How a statement begins, and the whole of a question. The quotation mark keeps any tokenizer from joining what is
    asked for with what stands before it."""
    return f'\n{name} "'


@dataclass(frozen=True)
class Sample:
    tokens: np.ndarray
    """length + 1 tokens; the answer is at the end."""
    twin: np.ndarray
    """The same, but with another answer stated: question and answer at the end have not changed."""
    answer: int
    """Tokens of the answer."""


@dataclass(frozen=True)
class _Draw:
    """What is random in a sample, apart from the places of other statements."""

    names: list[str]
    values: list[str]
    """What is stated about each name; the first is asked for."""
    other: str
    """What the twin states about the first."""
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
        """Of what defines the samples."""
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
        """The filler with a statement at each cut; where there are several, the one that is asked for comes first."""
        before = 0
        for cut, name, value in sorted(zip(cuts, names, values, strict=True), key=lambda each: each[0]):
            yield filler[before:cut]
            yield self._statement(name, value)
            before = cut
        yield filler[before:]

    def _statement(self, name: str, value: str) -> np.ndarray:
        # Encoded in parts, so that the answer is made of the same tokens here and in the question.
        return np.concatenate([self.tokenizer.encode(opening(name)), self.tokenizer.encode(value), self._close])

    # What is random --------------------------------------------------------------------------------------------------

    def _draw(self, length: int, index: int) -> _Draw:
        """Names and values that the filler does not mention. All lengths and depths of an index have the same ones, and
        filler that ends at the same place, unless the filler of one length forbids it."""
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
        """Names, values, what the twin states instead of the first, and where the filler ends."""
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
        # All begin with different letters: the first one tells which value it is.
        initials = generator.permutation(list(CONSONANTS))
        values = [_word(generator, str(initial)) for initial in initials[: pairs + 1]]
        initials = generator.permutation(list(CONSONANTS))
        names = [_word(generator, str(initial)) for initial in initials[:pairs]]
        return names, values[:-1], values[-1]

    def _needed(self, names: Sequence[str], values: Sequence[str]) -> int:
        """Tokens of all statements, of the question and of its answer."""
        stated = sum(len(self._statement(name, value)) for name, value in zip(names, values, strict=True))
        return stated + len(self._statement(names[0], values[0])) - len(self._close)

    def _filler(self, tokens: int, end: int) -> np.ndarray:
        """Held-out text, read as a ring, so that where it ends does not depend on how long it is."""
        available = len(self.stream)
        if available < tokens:
            raise UsageError(f"the held-out text has {available} tokens, too few to fill a text with {tokens}")
        return self.stream.gather((end - tokens + np.arange(tokens)) % available)

    def shortest(self) -> int:
        """The smallest length at which every sample has room for what it must say."""
        drawn = (next(self._candidates(index)) for index in range(self.config.samples))
        return max(self._needed(names, values) for names, values, _, _ in drawn) - 1


def _joined(digits: np.ndarray) -> str:
    return "".join(map(str, digits.tolist()))


def _word(generator: np.random.Generator, initial: str) -> str:
    """Like hakuna: syllables of a consonant and a vowel."""
    word = initial + generator.choice(list(VOWELS))
    for _ in range(SYLLABLES - 1):
        word += generator.choice(list(CONSONANTS)) + generator.choice(list(VOWELS))
    return word
