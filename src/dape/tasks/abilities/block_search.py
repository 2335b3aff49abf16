"""Block search: find the block with a label, then the token at a place in it.

    @3 a b c d @7 e f g h    @7 #2 f @3 #4 d

Blocks of four tokens, each after its label of two tokens. A question is a label and a number from 1 to 4, and there is
one about every block. Contents 0 to 31, the mark 32, labels 33 to 64, numbers 65 to 68. It finds by content where a
block begins and by position what follows it."""

import numpy as np

from dape.tasks.abilities.base import Ability, Examples, one_by_one

CONTENTS, MARK, LABEL, LABELS, NUMBER, SIZE = 32, 32, 33, 32, 65, 4


class BlockSearch(Ability):
    vocabulary = 69
    shortest = 12

    def draw(self, generator: np.random.Generator, size: int, length: int) -> Examples:
        return one_by_one(size, lambda: self._one(generator, length))

    def _one(self, generator: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
        width, asking = 3 + SIZE, 5
        count = min((length + 1) // (width + asking), LABELS**2)
        tokens = generator.integers(0, CONTENTS, length + 1)
        labels = generator.choice(LABELS**2, count, replace=False)
        begin = length + 1 - (width + asking) * count
        for n, label in enumerate(labels):
            at = begin + width * n
            tokens[at : at + 3] = MARK, LABEL + label // LABELS, LABEL + label % LABELS
        asked, numbers = generator.permutation(count), generator.integers(SIZE, size=count)
        answers = tokens[begin + width * asked + 3 + numbers]
        names = LABEL + labels[asked] // LABELS, LABEL + labels[asked] % LABELS
        questions = np.stack([np.full(count, MARK), *names, NUMBER + numbers, answers], axis=1)
        tokens[length + 1 - asking * count :] = questions.ravel()
        return tokens, np.arange(length + 1 - asking * (count - 1), length + 2, asking) - 1
