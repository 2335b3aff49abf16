"""Random expressions in brackets, and their value: all expressions of a batch at once.

An expression of n tokens is   d,   - d,   ( d ),   ( - d )   for n = 1 ... 4, and above that   ( L o R )   with an
operator o and two expressions L, R, whose lengths share what is left in every way with the same probability.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from dape.tasks.chomsky.base import Tokens

MODULUS = 5
SMALLEST_PAIR = 5
"""Tokens of ( d o d )."""


@dataclass(frozen=True)
class Alphabet:
    """Token ids; digits are 0 to 4."""

    operators: tuple[int, ...]
    """Plus, minus and, if there is a third, times."""
    opening: int
    closing: int

    @property
    def minus(self) -> int:
        return self.operators[1]


def draw_expressions(generator: np.random.Generator, batch: int, length: int, alphabet: Alphabet) -> Tokens:
    """Spans of tokens are split until all are small; one round splits every span of every expression."""
    tokens = np.zeros((batch, length), dtype=np.int64)
    rows, starts, sizes = np.arange(batch), np.zeros(batch, dtype=np.int64), np.full(batch, length)
    while len(rows):
        _write_small(generator, tokens, rows, starts, sizes, alphabet)
        large = sizes >= SMALLEST_PAIR
        rows, starts, sizes = rows[large], starts[large], sizes[large]
        left = generator.integers(1, sizes - 3)
        middle = starts + 1 + left
        tokens[rows, starts] = alphabet.opening
        tokens[rows, middle] = np.asarray(alphabet.operators)[generator.integers(0, len(alphabet.operators), len(rows))]
        tokens[rows, starts + sizes - 1] = alphabet.closing
        right = sizes - left - 3
        rows = np.concatenate([rows, rows])
        starts, sizes = np.concatenate([starts + 1, middle + 1]), np.concatenate([left, right])
    return tokens


def _write_small(
    generator: np.random.Generator,
    tokens: Tokens,
    rows: Int[np.ndarray, " s"],
    starts: Int[np.ndarray, " s"],
    sizes: Int[np.ndarray, " s"],
    alphabet: Alphabet,
) -> None:
    """Spans of at most four tokens: a digit, with a sign if the size is even, in brackets from three on."""
    small = sizes < SMALLEST_PAIR
    rows, starts, sizes = rows[small], starts[small], sizes[small]
    bracketed, signed = sizes >= 3, sizes % 2 == 0
    tokens[rows[bracketed], starts[bracketed]] = alphabet.opening
    tokens[rows[bracketed], (starts + sizes - 1)[bracketed]] = alphabet.closing
    tokens[rows[signed], (starts + bracketed)[signed]] = alphabet.minus
    tokens[rows, starts + bracketed + signed] = generator.integers(0, MODULUS, len(rows))


def values(tokens: Tokens, alphabet: Alphabet) -> Int[np.ndarray, " b"]:
    """Read all expressions from left to right, each with a stack of what surrounds the present bracket.

    Inside a bracket ``left + sign x`` is kept, or ``left x`` after times, where x is the operand to come: a pair of
    numbers (left, factor) such that the value will be ``left + factor x``. One pass serves any nesting.
    """
    batch, length = tokens.shape
    rows, depth = np.arange(batch), np.zeros(batch, dtype=np.int64)
    base, factor = np.zeros((batch, length // 2 + 2), dtype=np.int64), np.ones((batch, length // 2 + 2), dtype=np.int64)
    value, waiting = np.zeros(batch, dtype=np.int64), np.ones(batch, dtype=bool)
    for token in tokens.T:
        opens, closes, digit = token == alphabet.opening, token == alphabet.closing, token < MODULUS
        here = base[rows, depth], factor[rows, depth]
        # A digit completes the operand at this depth; a closing bracket hands its value to the depth below.
        inner = np.where(digit, (here[0] + here[1] * token) % MODULUS, value)
        depth = depth + opens - closes
        below = base[rows, depth], factor[rows, depth]
        value = np.where(closes, (below[0] + below[1] * inner) % MODULUS, inner)
        grows = ~(opens | closes | digit)
        sign = np.where(token == alphabet.minus, -1, 1)
        times = grows & (token == alphabet.operators[2]) if len(alphabet.operators) > 2 else np.zeros_like(grows)
        # After a value: remember it. Before one, a minus changes the sign of what is to come.
        begun = np.where(waiting, below[0], np.where(times, 0, value))
        scale = np.where(waiting, below[1] * sign, np.where(times, value, sign))
        base[rows, depth] = np.where(opens, 0, np.where(grows, begun, below[0]))
        factor[rows, depth] = np.where(opens, 1, np.where(grows, scale, below[1]))
        waiting = opens | grows
    return value
