"""Binary numbers as rows of bits, so that one array operation handles the whole batch."""

import numpy as np
from jaxtyping import Bool, Int

from dape.tasks.chomsky.base import Tokens

OPERATOR = 2


def nonzero(generator: np.random.Generator, valid: Bool[np.ndarray, "b t"]) -> Tokens:
    """Uniformly random bits at ``valid`` places, of which at least one is set in each row; 0 at other places."""
    bits = generator.integers(0, 2, valid.shape) * valid
    while (zero := ~bits.any(axis=1)).any():
        bits[zero] = generator.integers(0, 2, (zero.sum(), valid.shape[1])) * valid[zero]
    return bits


def draw_operands(generator: np.random.Generator, batch: int, length: int) -> Tokens:
    """Two little-endian nonzero numbers with an operator between them. The first has 1 to length - 2 bits.

    With fewer than three tokens there is no operator, but one number, which is never all ones.
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
    """The bits of both numbers, lowest first, padded with zeros. Without an operator the second number is 0."""
    length = tokens.shape[1]
    places = np.arange(length)
    operator = np.where((tokens == OPERATOR).any(axis=1), (tokens == OPERATOR).argmax(axis=1), length)[:, None]
    first = np.where(places < operator, tokens, 0)
    source = operator + 1 + places
    second = np.where(source < length, np.take_along_axis(tokens, np.minimum(source, length - 1), axis=1), 0)
    return first, second


def carried(sums: Int[np.ndarray, "b t"]) -> Tokens:
    """The bits of the numbers ``sum of sums[t] 2^t``, which must not need more bits than ``sums`` has places."""
    bits, carry = np.empty_like(sums), np.zeros(len(sums), dtype=sums.dtype)
    for place in range(sums.shape[1]):
        carry = carry + sums[:, place]
        bits[:, place] = carry & 1
        carry = carry >> 1
    return bits


def significant(bits: Tokens) -> Int[np.ndarray, " b"]:
    """The number of bits up to the highest that is set; 1 for the number 0."""
    length = bits.shape[1]
    return np.where(bits.any(axis=1), length - bits[:, ::-1].argmax(axis=1), 1)
