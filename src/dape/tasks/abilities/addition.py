"""Addition with the lowest digit first:

    3 9 1 + 2 4 0 = 5 3 2        (193 + 42 = 235)

Digits 0 to 9, + is 10, = is 11, and 12 fills what is left over in front. All digits of the sum are scored; what it
carries beyond its last digit is dropped, so that all numbers are equally long. A digit needs the two of its own place,
n + 1 and 2n + 2 tokens back, and the carry."""

import numpy as np

from dape.tasks.abilities.base import Ability, Examples

PLUS, EQUALS, FILL = 10, 11, 12


class Addition(Ability):
    vocabulary = 13
    shortest = 10

    def draw(self, generator: np.random.Generator, size: int, length: int) -> Examples:
        digits = (length - 1) // 3
        a, b = generator.integers(0, 10, (2, size, digits))
        total, carry = np.empty_like(a), np.zeros(size, int)
        for n in range(digits):
            carry, total[:, n] = np.divmod(a[:, n] + b[:, n] + carry, 10)
        sign = np.ones((size, 1), int)
        whole = np.concatenate([a, PLUS * sign, b, EQUALS * sign, total], axis=1)
        front = np.full((size, length + 1 - whole.shape[1]), FILL)
        scored = np.arange(length + 1 - digits, length + 1)
        return Examples(np.concatenate([front, whole], axis=1), np.tile(scored, (size, 1)))
