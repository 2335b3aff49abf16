"""Every generated test against a solver that reads tokens alone, written from the file's docstring."""

from itertools import pairwise

import numpy as np
import pytest

from dape.errors import UsageError
from dape.tasks.abilities.catalogue import ABILITIES, SETS, chosen, find

LENGTHS = (0, 1, 13, 64, 257)
"""Beyond the shortest."""


def last_value(tokens):
    """Answers at the keys of the questions: one key for eight tokens, up to 16."""
    asked = min(16, len(tokens) // 8)
    context, questions = tokens[: -2 * asked], tokens[-2 * asked :]
    found = []
    for key in questions[::2]:
        at = max(i for i in range(len(context) - 1) if context[i] == key and 16 <= key < 32)
        found.append(context[at + 1])
    return found


def two_token_keys(tokens):
    questions = min(8, len(tokens) // 8)
    context, rest = tokens[: -3 * questions], tokens[-3 * questions :]
    table = {(a, b): c for a, b, c in zip(context, context[1:], context[2:], strict=False) if 16 <= a < 24 <= b < 32}
    return [table[rest[n], rest[n + 1]] for n in range(0, len(rest), 3)]


def power_gaps(tokens):
    value, found = {}, []
    for token, after in pairwise(tokens):
        if 16 <= token < 32:
            value[token - 16] = after
        elif 32 <= token < 48:
            found.append(value[token - 32])
    return found


def needle(tokens):
    first = tokens.index(16)
    return tokens[first + 2 : first + 5]


def many_needles(tokens):
    count = min(64, len(tokens) // 10)
    context, questions = tokens[: -5 * count], tokens[-5 * count :]
    table = {context[i + 1]: context[i + 2 : i + 5] for i in range(len(context)) if context[i] == 16}
    return [content for i in range(0, 5 * count, 5) for content in table[questions[i + 1]]]


def variables(tokens):
    source = {tokens[i + 1]: tokens[i + 2] for i in range(len(tokens) - 2) if tokens[i] == 16}
    found = []
    for at in tokens[-12::2]:
        while at in source:
            at = source[at]
        found.append(at)
    return found


def common_word(tokens):
    words = tokens[:-2]
    counts = sorted(((words.count(w), w) for w in set(words)), reverse=True)
    assert counts[0][0] > counts[1][0]
    return [counts[0][1]]


def frequent_words(tokens):
    words = [w for w in tokens[:-4] if w < 32]
    ranked = sorted(set(words), key=words.count, reverse=True)
    amounts = [words.count(w) for w in ranked]
    assert amounts[0] > amounts[1] > amounts[2] > amounts[3]
    return ranked[:3]


def block_search(tokens):
    count = len(tokens) // 12
    context, questions = tokens[: -5 * count], tokens[-5 * count :]
    blocks = {tuple(context[i + 1 : i + 3]): context[i + 3 : i + 7] for i in range(len(context)) if context[i] == 32}
    return [blocks[tuple(questions[i + 1 : i + 3])][questions[i + 3] - 65] for i in range(0, 5 * count, 5)]


def counting(tokens):
    body, asked = tokens[:-8], tokens[-8::2]
    return [32 + body.count(symbol - 24) for symbol in asked]


def copying(tokens):
    mark = tokens.index(8)
    return tokens[1 if tokens[0] == 9 else 0 : mark]


def addition(tokens):
    tokens = [t for t in tokens if t != 12]
    plus, equals = tokens.index(10), tokens.index(11)
    a, b = (int("".join(map(str, digits[::-1]))) for digits in (tokens[:plus], tokens[plus + 1 : equals]))
    return [int(d) for d in str((a + b) % 10**plus).zfill(plus)[::-1]]


SOLVERS = {
    "last-value": last_value,
    "two-token-keys": two_token_keys,
    "power-gaps": power_gaps,
    "needle": needle,
    "many-needles": many_needles,
    "variables": variables,
    "common-word": common_word,
    "frequent-words": frequent_words,
    "block-search": block_search,
    "counting": counting,
    "copying": copying,
    "addition": addition,
}


def test_every_test_has_a_solver_and_says_what_it_isolates():
    assert set(SOLVERS) == set(ABILITIES)
    assert all(":" in entry.isolates for entry in ABILITIES.values())
    assert chosen(["ruler", "needle", "copying"])[-1] == "copying" and len(chosen(["all"])) == len(ABILITIES)
    with pytest.raises(UsageError, match="Did you mean 'copying'"):
        find("copyng")


@pytest.mark.parametrize("more", LENGTHS)
@pytest.mark.parametrize("name", ABILITIES)
def test_a_solver_that_reads_the_tokens_gives_the_answers(name, more):
    ability = find(name).load()
    length = ability.shortest + more
    drawn = ability.draw(np.random.default_rng(5), 20, length)
    assert drawn.tokens.shape == (20, length + 1) and drawn.scored.shape[1] >= 1
    assert drawn.tokens.min() >= 0 and drawn.tokens.max() < ability.vocabulary
    for tokens, scored, answers in zip(drawn.tokens.tolist(), drawn.scored, drawn.answers.tolist(), strict=True):
        assert (np.diff(scored) > 0).all() and scored[0] >= 1 and scored[-1] <= length
        # Answers are not read, except by those that come after them.
        blank = [-1 if i == scored[-1] else token for i, token in enumerate(tokens)]
        assert SOLVERS[name](blank) == answers, (name, tokens)


@pytest.mark.parametrize("name", ABILITIES)
def test_a_draw_is_a_function_of_its_generator(name):
    ability = find(name).load()
    one, two, other = (ability.draw(np.random.default_rng(seed), 8, 65) for seed in (1, 1, 2))
    assert (one.tokens == two.tokens).all() and (one.tokens != other.tokens).any()


@pytest.mark.parametrize("name", ABILITIES)
def test_a_constant_answer_is_seldom_right(name):
    """What a model that reads nothing would get."""
    drawn = find(name).load().draw(np.random.default_rng(3), 400, 64)
    shares = [np.bincount(column).max() / 400 for column in drawn.answers.T]
    assert np.mean(shares) < 0.2, shares


def test_gaps_follow_a_power_law():
    """Of the gaps of power-gaps, as many lie between 8 and 64 tokens as between 64 and 512, about."""
    ability = find("power-gaps").load()
    drawn = ability.draw(np.random.default_rng(0), 40, 1024)
    near = far = 0
    for tokens, scored in zip(drawn.tokens, drawn.scored, strict=True):
        for at in scored[len(scored) // 2 :]:
            stated = np.flatnonzero(tokens[: at - 1] == tokens[at - 1] - 16)[-1]
            gap = at - 1 - stated
            near, far = near + (8 <= gap < 64), far + (64 <= gap < 512)
    assert 0.4 < far / near < 2.5


def test_sets_name_tests():
    assert all(name in ABILITIES for names in SETS.values() for name in names)
