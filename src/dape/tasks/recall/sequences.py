"""Associative recall in artificial tokens (MQAR): pairs of a key and a value among noise, then keys as questions.

    . . k7 v2 . . . k1 v9 . k4 v4 . .   k1 v9 k4 v4 k7 v2
    ------------- context ------------  ---- questions ---

The values in the questions are the answers. They follow from the context, and only they are scored. Noise, keys and
values are different tokens. All functions here are deterministic.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dape.files import sha256_of
from dape.tasks.examples import Examples
from dape.tasks.recall.config import SHORTEST, RecallConfig, depth_places, shortest_test

TRAIN, TEST = 0, 1
TEST_SEED = 0
"""All methods and seeds are tested on the same sequences."""
MOST_QUESTIONS = 12
GROWING = 0.6
"""Fraction of the training steps in which sequences get longer."""


@dataclass(frozen=True)
class Sequences(Examples):
    places: np.ndarray
    """[sequence, question]: the first token of the pair that is asked for."""

    @property
    def questions(self) -> int:
        return self.places.shape[1]


def _sequences(tokens: np.ndarray, places: np.ndarray) -> Sequences:
    """The answers are the last token and every second one before it."""
    scored = np.arange(tokens.shape[1])[1 - 2 * places.shape[1] :: 2]
    return Sequences(tokens, np.tile(scored, (len(tokens), 1)), places)


# Training ------------------------------------------------------------------------------------------------------------


def training_batch(config: RecallConfig, *, seed: int, step: int) -> Sequences:
    """The batch of one step, with sequences of equal length.

    The longest length of a step grows from :data:`SHORTEST` to the training length in the first :data:`GROWING` of the
    steps: in short sequences attention finds pairs by chance often enough to begin to learn. Keys may be asked for
    several times, so that earlier answers do not rule out later ones.
    """
    generator = np.random.default_rng([TRAIN, seed, step])
    grown = min(1.0, step / (GROWING * config.steps))
    length = int(generator.integers(SHORTEST, int(SHORTEST + grown * (config.train_length - SHORTEST)) + 1))
    pairs = int(generator.integers(2, max(2, min(config.pairs, length // 5)) + 1))
    questions = min(MOST_QUESTIONS, (length + 1 - 2 * pairs) // 2)
    size = config.batch * config.train_length // length
    return _draw_batch(generator, config, size=size, length=length, pairs=pairs, questions=questions)


def _draw_batch(
    generator: np.random.Generator, config: RecallConfig, *, size: int, length: int, pairs: int, questions: int
) -> Sequences:
    context, n = length + 1 - 2 * questions, config.keys
    tokens = generator.integers(0, n, (size, length + 1))
    keys = n + _distinct(generator, size, n, pairs)
    values = 2 * n + _distinct(generator, size, n, pairs)
    places = np.sort(_distinct(generator, size, context - pairs, pairs), axis=1) + np.arange(pairs)
    row = np.arange(size)[:, None]
    tokens[row, places], tokens[row, places + 1] = keys, values
    asked = generator.integers(0, pairs, (size, questions))
    tokens[:, context::2], tokens[:, context + 1 :: 2] = keys[row, asked], values[row, asked]
    return _sequences(tokens, places[row, asked])


def _distinct(generator: np.random.Generator, rows: int, below: int, count: int) -> np.ndarray:
    """[rows, count]: in each row different numbers below ``below``, in random order."""
    return generator.random((rows, below)).argsort(axis=1)[:, :count]


# Testing -------------------------------------------------------------------------------------------------------------


def fits(length: int, pairs: int) -> bool:
    return length >= shortest_test(pairs)


def evaluation_sequences(config: RecallConfig, *, length: int, pairs: int, depths: Sequence[float] = ()) -> Sequences:
    """Test sequences in which every pair is asked for once. With ``depths``, only a pair at each depth is asked for."""
    each = [
        evaluation_sequence(config, length=length, pairs=pairs, depths=depths, index=i) for i in range(config.samples)
    ]
    return _sequences(np.stack([tokens for tokens, _ in each]), np.stack([places for _, places in each]))


def evaluation_sequence(
    config: RecallConfig, *, length: int, pairs: int, index: int, depths: Sequence[float] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of one sequence, and the first tokens of the pairs that are asked for."""
    generator = np.random.default_rng([TEST, TEST_SEED, length, pairs, len(depths), index])
    n, questions = config.keys, len(depths) or pairs
    context = length + 1 - 2 * questions
    fixed = depth_places(depths, context)
    places = _places(generator, context, pairs, fixed)
    tokens = generator.integers(0, n, length + 1)
    keys, values = n + generator.permutation(n)[:pairs], 2 * n + generator.permutation(n)[:pairs]
    tokens[places], tokens[places + 1] = keys, values
    asked = generator.permutation(np.searchsorted(places, fixed) if fixed else pairs)
    tokens[context::2], tokens[context + 1 :: 2] = keys[asked], values[asked]
    return tokens, places[asked]


def _places(generator: np.random.Generator, context: int, pairs: int, fixed: Sequence[int]) -> np.ndarray:
    """The first tokens of pairs, in order: the fixed ones, and random others that do not overlap."""
    begins, ends = [0, *(place + 2 for place in fixed)], [*fixed, context]
    sizes, counts = np.subtract(ends, begins), np.zeros(len(begins), int)
    for _ in range(pairs - len(fixed)):
        room = sizes - 2 * counts
        room[room < 2] = 0
        counts[generator.choice(len(room), p=room / room.sum())] += 1
    drawn = [
        # Choose which elements of a row are pairs; the others are single tokens of noise.
        begin + np.sort(generator.permutation(size - count)[:count]) + np.arange(count)
        for begin, size, count in zip(begins, sizes, counts, strict=True)
    ]
    return np.sort(np.concatenate([*drawn, np.array(fixed, int)]).astype(int))


def data_hash(config: RecallConfig) -> str:
    """A hash of what defines the test sequences."""
    names = ("keys", "samples", "depths")
    return sha256_of(json.dumps(["mqar", 1, *(getattr(config, name) for name in names)]))


def tokens_name(config: RecallConfig) -> str:
    """The tokenizer's name in rows: there is no text, and no tokenizer."""
    return f"mqar:{config.keys}"
