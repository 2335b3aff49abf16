"""Variable tracking, as RULER has it: assignments in chains, and the value of every variable.

    . x3=9 . . x5=x3 . x1=4 . . x2=x5 . x7=x1 .    x2 9 x1 4 x3 9 ...

written as three tokens each: a mark, the variable, and a value or the variable before it. Two chains of three variables
are mixed among noise. All are asked for, which takes one, two or three lookups, each from where the one before has led.
Noise 0 to 15, the mark 16, variables 17 to 40, values 41 to 72."""

import numpy as np

from dape.tasks.abilities.base import Ability, Examples, one_by_one, spread

MARK, VARIABLE, VALUE, VARIABLES, VALUES = 16, 17, 41, 24, 32
CHAINS, LINKS = 2, 3


class Variables(Ability):
    vocabulary = 73
    shortest = 5 * CHAINS * LINKS

    def draw(self, generator: np.random.Generator, size: int, length: int) -> Examples:
        return one_by_one(size, lambda: self._one(generator, length))

    def _one(self, generator: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
        tokens = generator.integers(0, MARK, length + 1)
        context = length + 1 - 2 * CHAINS * LINKS
        names = VARIABLE + generator.permutation(VARIABLES)[: CHAINS * LINKS].reshape(CHAINS, LINKS)
        values = VALUE + generator.permutation(VALUES)[:CHAINS]
        order = generator.permutation(np.repeat(np.arange(CHAINS), LINKS))
        done = [0] * CHAINS
        for place, chain in zip(spread(generator, context, CHAINS * LINKS, 3), order, strict=True):
            link = done[chain]
            source = values[chain] if link == 0 else names[chain, link - 1]
            tokens[place : place + 3] = MARK, names[chain, link], source
            done[chain] += 1
        asked = generator.permutation(CHAINS * LINKS)
        tokens[context::2], tokens[context + 1 :: 2] = names.ravel()[asked], values[asked // LINKS]
        return tokens, np.arange(context + 1, length + 1, 2)
