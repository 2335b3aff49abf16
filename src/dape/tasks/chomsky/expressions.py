"""Random expressions in brackets, and their values, for all expressions of a batch at once.

An expression of n tokens is   d,   - d,   ( d ),   ( - d )   for n = 1 ... 4, and   ( L o R )   for n > 4, with an
operator o and two expressions L and R. All divisions of the remaining n - 3 tokens into L and R are equally likely.
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
    """Token ids. Digits are 0 to 4."""

    operators: tuple[int, ...]
    """Plus, minus, and perhaps times."""
    opening: int
    closing: int

    @property
    def minus(self) -> int:
        return self.operators[1]


def draw_expressions(generator: np.random.Generator, batch: int, length: int, alphabet: Alphabet) -> Tokens:
    """Split spans of tokens until all are small. Each round splits every span of every expression."""
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
    """Write the spans of at most four tokens: a digit, with a sign if the size is even, in brackets if it is over 2."""
    small = sizes < SMALLEST_PAIR
    rows, starts, sizes = rows[small], starts[small], sizes[small]
    bracketed, signed = sizes >= 3, sizes % 2 == 0
    tokens[rows[bracketed], starts[bracketed]] = alphabet.opening
    tokens[rows[bracketed], (starts + sizes - 1)[bracketed]] = alphabet.closing
    tokens[rows[signed], (starts + bracketed)[signed]] = alphabet.minus
    tokens[rows, starts + bracketed + signed] = generator.integers(0, MODULUS, len(rows))


def values(tokens: Tokens, alphabet: Alphabet) -> Int[np.ndarray, " b"]:
    """The values modulo 5, in one pass from left to right over all expressions.

    Each expression has a stack with an entry for every open bracket: two numbers (base, factor) such that the value is
    ``base + factor x``, where x is the next operand. They are (0, 1) at first, (left, 1 or -1) after plus or minus, and
    (0, left) after times.
    """
    batch, length = tokens.shape
    rows, depth = np.arange(batch), np.zeros(batch, dtype=np.int64)
    base, factor = np.zeros((batch, length // 2 + 2), dtype=np.int64), np.ones((batch, length // 2 + 2), dtype=np.int64)
    value, waiting = np.zeros(batch, dtype=np.int64), np.ones(batch, dtype=bool)
    for token in tokens.T:
        opens, closes, digit = token == alphabet.opening, token == alphabet.closing, token < MODULUS
        here = base[rows, depth], factor[rows, depth]
        # A digit is the operand at this depth. The value of a closing bracket is the operand at the depth below.
        inner = np.where(digit, (here[0] + here[1] * token) % MODULUS, value)
        depth = depth + opens - closes
        below = base[rows, depth], factor[rows, depth]
        value = np.where(closes, (below[0] + below[1] * inner) % MODULUS, inner)
        grows = ~(opens | closes | digit)
        sign = np.where(token == alphabet.minus, -1, 1)
        times = grows & (token == alphabet.operators[2]) if len(alphabet.operators) > 2 else np.zeros_like(grows)
        # An operator after a value stores it. A minus before an operand changes its sign.
        begun = np.where(waiting, below[0], np.where(times, 0, value))
        scale = np.where(waiting, below[1] * sign, np.where(times, value, sign))
        base[rows, depth] = np.where(opens, 0, np.where(grows, begun, below[0]))
        factor[rows, depth] = np.where(opens, 1, np.where(grows, scale, below[1]))
        waiting = opens | grows
    return value
