"""Words counted, as RULER has them: which is the most common, and which are the three most frequent?

    common:     w4 w9 w4 w2 w4 w9 w4 ...      ? w4
    frequent:   w1 w7 w1 . w3 w1 w7 ...       ? w1 w7 w3

``CommonWord``: one word is about half as frequent again as each of the others. ``FrequentWords``: frequencies fall by
Zipf's law and a part of the tokens is noise; the three most frequent words in their order. Words 0 to 31, noise 32 to
47, the question 48. Nothing is looked up: the whole context is summed, however long it is."""

import numpy as np

from dape.tasks.abilities.base import Ability, Examples, one_by_one

WORDS, NOISE, NOISES, ASK = 32, 32, 16, 48


class CommonWord(Ability):
    vocabulary = 49
    shortest = 16
    others = 5

    def draw(self, generator: np.random.Generator, size: int, length: int) -> Examples:
        return one_by_one(size, lambda: self._one(generator, length))

    def _one(self, generator: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
        words = generator.permutation(WORDS)[: self.others + 1]
        room = length - 1
        each = int(room / (self.others + 1.5))
        counts = np.array([room - self.others * each, *[each] * self.others])
        tokens = [*generator.permutation(np.repeat(words, counts)), ASK, words[0]]
        return np.array(tokens), np.array([length])


class FrequentWords(Ability):
    vocabulary = 49
    shortest = 24
    kinds = 6

    def draw(self, generator: np.random.Generator, size: int, length: int) -> Examples:
        return one_by_one(size, lambda: self._one(generator, length))

    def _one(self, generator: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
        words = generator.permutation(WORDS)[: self.kinds]
        room = length + 1 - 4
        share = 1 / np.arange(1, self.kinds + 1) ** 1.5
        counts = np.maximum(1, np.floor(0.75 * room * share / share.sum()).astype(int))
        counts[:3] += np.array([3, 2, 1])  # no ties among the first, however short
        counts[0] -= max(0, counts.sum() - room)
        noise = NOISE + generator.integers(0, NOISES, room - counts.sum())
        body = generator.permutation(np.concatenate([np.repeat(words, counts), noise]))
        return np.concatenate([body, [ASK], words[:3]]), np.arange(length - 2, length + 1)
