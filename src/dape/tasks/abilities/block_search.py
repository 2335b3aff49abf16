"""Block search: find the block with a label, then the token at a place in it.

    @3 a b c d @7 e f g h @1 i j k l    @7 #2 f

Blocks of four tokens, each after its label of two tokens; the question is a label and a number from 1 to 4. Contents 0
to 31, the mark 32, labels 33 to 64, numbers 65 to 68. It finds by content where a block begins and by position what
follows it."""

import numpy as np

from dape.tasks.abilities.base import Ability, Examples, one_by_one

CONTENTS, MARK, LABEL, LABELS, NUMBER, SIZE = 32, 32, 33, 32, 65, 4


class BlockSearch(Ability):
    vocabulary = 69
    shortest = 20

    def draw(self, generator: np.random.Generator, size: int, length: int) -> Examples:
        return one_by_one(size, lambda: self._one(generator, length))

    def _one(self, generator: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
        width, asking = 3 + SIZE, 5
        count = min((length + 1 - asking) // width, LABELS**2)
        tokens = generator.integers(0, CONTENTS, length + 1)
        labels = generator.choice(LABELS**2, count, replace=False)
        begin = length + 1 - asking - width * count
        for n, label in enumerate(labels):
            at = begin + width * n
            tokens[at : at + 3] = MARK, LABEL + label // LABELS, LABEL + label % LABELS
        asked, number = int(generator.integers(count)), int(generator.integers(SIZE))
        answer = tokens[begin + width * asked + 3 + number]
        label = labels[asked]
        tokens[-asking:] = MARK, LABEL + label // LABELS, LABEL + label % LABELS, NUMBER + number, answer
        return tokens, np.array([length])
