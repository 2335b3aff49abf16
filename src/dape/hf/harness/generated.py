"""Generated tests as multiple-choice questions in words, for models that were trained on text. Neither torch nor
lm-eval.

A symbol is a word of three letters, the same in all questions. The question is everything before the last answer; the
choices are that answer and others of the same test."""

from collections.abc import Sequence

import numpy as np

from dape.errors import UsageError
from dape.files import sha256_of
from dape.hf.harness.questions import Questions
from dape.tasks.abilities.catalogue import chosen, find

CHOICES = 4
SEED = 2
"""Neither of training nor of the other tests."""


def generated_questions(names: Sequence[str], symbols: Sequence[int], count: int) -> list[Questions]:
    """``count`` questions of each test at each number of symbols."""
    tests = chosen(names)
    for test in tests:
        shortest = find(test).load().shortest
        if symbols and min(symbols) < shortest:
            raise UsageError(f"`symbols` {min(symbols)} is too short for {test}; it must be at least {shortest}")
    return [_questions(test, length, count) for test in tests for length in sorted(set(symbols))]


def _questions(test: str, length: int, count: int) -> Questions:
    generator = np.random.default_rng([SEED, length])
    drawn = find(test).load().draw(generator, max(count, 2 * CHOICES), length)
    answers = drawn.answers[:, -1]
    items = []
    for tokens, scored, answer in zip(drawn.tokens[:count], drawn.scored, answers, strict=False):
        others = generator.permutation(np.setdiff1d(answers, [answer]))[: CHOICES - 1]
        choices = generator.permutation(np.append(others, answer))
        items.append(
            {
                "question": " ".join(map(word, tokens[: scored[-1]])),
                "choices": [word(choice) for choice in choices],
                "answer": int(np.flatnonzero(choices == answer)[0]),
            }
        )
    return Questions(f"{test}-{length}", items, sha256_of(drawn.tokens.astype("<i8").tobytes()))


def word(symbol: int) -> str:
    """
    >>> [word(n) for n in (0, 1, 12, 60)]
    ['ban', 'dan', 'ben', 'bat']
    """
    return "bdfgklmnprst"[symbol % 12] + "aeiou"[symbol // 12 % 5] + "nt"[symbol // 60]
