"""Gaps by a power law: questions all along the sequence, about pairs that stand 2, 4, 8, ... tokens back, equally
often.

    . . k2 v5 . . ?2 v5 k7 v1 . . . . ?7 v1 . . ?2 v5

A question is a key in another spelling; its answer is the last value written for it. Noise 0 to 15, keys 16 to 31,
questions 32 to 47, values 48 to 79. Every scale of distance is asked for, so a bias that fits one of them is not
enough."""

import numpy as np

from dape.tasks.abilities.base import Ability, Examples, one_by_one

KEY, ASK, VALUE, KEYS, VALUES = 16, 32, 48, 16, 32


class PowerGaps(Ability):
    vocabulary = 80
    shortest = 15

    def draw(self, generator: np.random.Generator, size: int, length: int) -> Examples:
        return one_by_one(size, lambda: self._one(generator, length))

    def _one(self, generator: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
        """In slots of two tokens: the first states; every further group of four has one statement and one question."""
        tokens = generator.integers(0, KEY, length + 1)
        begin = (length + 1) % 2
        slots = (length + 1) // 2
        written: dict[int, tuple[int, int]] = {}
        scored = []
        self._state(generator, tokens, begin, 0, written)
        for group in range(1, slots - 3, 4):
            stating, asking = np.sort(generator.permutation(4)[:2])
            if generator.random() < 0.5:
                stating, asking = asking, stating
            for slot in sorted((stating, asking)):
                if slot == stating:
                    self._state(generator, tokens, begin, group + slot, written)
                else:
                    scored.append(self._ask(generator, tokens, begin, group + slot, written))
        return tokens, np.array(scored)

    @staticmethod
    def _state(generator, tokens, begin, slot, written) -> None:
        key, value = int(generator.integers(KEYS)), int(generator.integers(VALUES))
        tokens[begin + 2 * slot : begin + 2 * slot + 2] = KEY + key, VALUE + value
        written[key] = (slot, value)

    @staticmethod
    def _ask(generator, tokens, begin, slot, written) -> int:
        """The key whose statement is nearest to a gap, whose logarithm is drawn evenly."""
        gap = np.exp(generator.uniform(0, np.log(slot + 1)))
        key = min(written, key=lambda key: abs(np.log((slot - written[key][0]) / gap)))
        tokens[begin + 2 * slot : begin + 2 * slot + 2] = ASK + key, VALUE + written[key][1]
        return begin + 2 * slot + 1
