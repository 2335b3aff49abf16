"""Associative recall in made-up tokens (MQAR): pairs of a key and a value among noise, then keys again.

    . . k7 v2 . . . k1 v9 . k4 v4 . .   k1 v9 k4 v4 k7 v2
    ------------- context ------------  ---- questions ---

A value after a key of the questions is an answer: it follows from the context alone, wherever the pair stood, and only
answers are scored. Noise, keys and values are different tokens. Everything here is a function of its arguments.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dape.files import sha256_of
from dape.tasks.recall.config import SHORTEST, RecallConfig, depth_places, shortest_test

TRAIN, TEST = 0, 1
TEST_SEED = 0
"""All seeds of all methods are tested on the same sequences."""
MOST_QUESTIONS = 12
GROWING = 0.6
"""Share of the training steps in which sequences get longer."""


@dataclass(frozen=True)
class Sequences:
    tokens: np.ndarray
    """[sequence, length + 1]: what a model reads, and one further, the last answer."""
    places: np.ndarray
    """[sequence, question]: where in the context the pair that is asked for begins."""

    @property
    def questions(self) -> int:
        return self.places.shape[1]

    @property
    def answers(self) -> np.ndarray:
        """[sequence, question]"""
        return self.tokens[:, -2 * self.questions + 1 :: 2]


# Training ------------------------------------------------------------------------------------------------------------


def training_batch(config: RecallConfig, *, seed: int, step: int) -> Sequences:
    """The batch of one step: its sequences are equally long, at least :data:`SHORTEST` tokens.

    The longest are short at first and have the training length after :data:`GROWING` of the steps: among few tokens
    attention finds the pairs by chance often enough to begin to learn. A key may be asked for again, so that no answer
    follows from those already given.
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
    return Sequences(tokens, places[row, asked])


def _distinct(generator: np.random.Generator, rows: int, below: int, count: int) -> np.ndarray:
    """[rows, count]: in each row numbers below ``below``, all different, in random order."""
    return generator.random((rows, below)).argsort(axis=1)[:, :count]


# Testing -------------------------------------------------------------------------------------------------------------


def fits(length: int, pairs: int) -> bool:
    return length >= shortest_test(pairs)


def evaluation_sequences(config: RecallConfig, *, length: int, pairs: int, depths: Sequence[float] = ()) -> Sequences:
    """Every pair is asked for once. With ``depths``, one pair stands at each, and only these are asked for."""
    each = [
        evaluation_sequence(config, length=length, pairs=pairs, depths=depths, index=i) for i in range(config.samples)
    ]
    return Sequences(np.stack([tokens for tokens, _ in each]), np.stack([places for _, places in each]))


def evaluation_sequence(
    config: RecallConfig, *, length: int, pairs: int, index: int, depths: Sequence[float] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens, and where the pairs begin that are asked for."""
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
    """Where pairs begin, in order: the fixed places, and others anywhere between, none overlapping."""
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
