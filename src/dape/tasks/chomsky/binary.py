"""Numbers as rows of bits, without ever becoming Python integers: one array operation serves the whole batch."""

import numpy as np
from jaxtyping import Bool, Int

from dape.tasks.chomsky.base import Tokens

OPERATOR = 2


def nonzero(generator: np.random.Generator, valid: Bool[np.ndarray, "b t"]) -> Tokens:
    """Bits that are uniform among all rows in which at least one bit at a ``valid`` place is set; 0 elsewhere."""
    bits = generator.integers(0, 2, valid.shape) * valid
    while (zero := ~bits.any(axis=1)).any():
        bits[zero] = generator.integers(0, 2, (zero.sum(), valid.shape[1])) * valid[zero]
    return bits


def draw_operands(generator: np.random.Generator, batch: int, length: int) -> Tokens:
    """Two little-endian numbers with the operator between, neither of them zero, the first 1 to length - 2 bits long.

    Below three tokens there is no room for an operator: one number, never all ones.
    """
    if length < 3:
        number = generator.integers(0, 2**length - 1, batch)
        return number[:, None] >> np.arange(length) & 1
    operator = generator.integers(1, length - 1, (batch, 1))
    places = np.arange(length)
    tokens = nonzero(generator, places < operator) + nonzero(generator, places > operator)
    tokens[places == operator] = OPERATOR
    return tokens


def operands(tokens: Tokens) -> tuple[Tokens, Tokens]:
    """The bits of both numbers, lowest first, zeros beyond; where there is no operator, the second is zero."""
    length = tokens.shape[1]
    places = np.arange(length)
    operator = np.where((tokens == OPERATOR).any(axis=1), (tokens == OPERATOR).argmax(axis=1), length)[:, None]
    first = np.where(places < operator, tokens, 0)
    source = operator + 1 + places
    second = np.where(source < length, np.take_along_axis(tokens, np.minimum(source, length - 1), axis=1), 0)
    return first, second


def carried(sums: Int[np.ndarray, "b t"]) -> Tokens:
    """The bits of a number given as the sum of ``sums[t] 2^t``; the last place must be large enough for it."""
    bits, carry = np.empty_like(sums), np.zeros(len(sums), dtype=sums.dtype)
    for place in range(sums.shape[1]):
        carry = carry + sums[:, place]
        bits[:, place] = carry & 1
        carry = carry >> 1
    return bits


def significant(bits: Tokens) -> Int[np.ndarray, " b"]:
    """Bits up to the highest that is set; zero is written with one."""
    length = bits.shape[1]
    return np.where(bits.any(axis=1), length - bits[:, ::-1].argmax(axis=1), 1)
