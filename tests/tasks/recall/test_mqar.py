"""Associative recall: what the sequences promise, checked by reading them token by token."""

import numpy as np
import pytest

from dape.tasks.recall.config import SHORTEST, RecallConfig
from dape.tasks.recall.sequences import (
    data_hash,
    evaluation_sequence,
    evaluation_sequences,
    fits,
    training_batch,
)

CONFIG = RecallConfig(lengths=(64,), keys=32, pairs=8, batch=4, samples=3)


def read(tokens: np.ndarray, questions: int, keys: int = 32) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """A slow reader: {key: value} as the context states them, and the (key, answer) of every question."""
    context, rest = [int(t) for t in tokens[: -2 * questions]], [int(t) for t in tokens[-2 * questions :]]
    stated, place = {}, 0
    while place < len(context):
        kind = context[place] // keys
        assert kind != 2, "a value that no key precedes"
        if kind == 1:
            assert context[place] not in stated, "a key is stated twice"
            assert context[place + 1] // keys == 2, "a key that no value follows"
            stated[context[place]] = context[place + 1]
        place += 1 + kind
    return stated, list(zip(rest[0::2], rest[1::2], strict=True))


# Training ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", range(0, 1000, 25))
def test_answers_follow_from_the_context(step):
    batch = training_batch(CONFIG, seed=3, step=step)
    length = batch.tokens.shape[1] - 1
    assert SHORTEST <= length <= 64
    assert len(batch.tokens) == 4 * 64 // length
    for tokens, places, answers in zip(batch.tokens, batch.places, batch.answers, strict=True):
        stated, asked = read(tokens, batch.questions)
        assert 2 <= len(stated) <= 8
        assert [answer for _, answer in asked] == answers.tolist()
        for (key, answer), place in zip(asked, places, strict=True):
            assert stated[key] == answer
            assert (tokens[place], tokens[place + 1]) == (key, answer)


def test_lengths_and_numbers_of_pairs_vary():
    batches = [training_batch(CONFIG, seed=0, step=step) for step in range(600, 1000)]
    assert {batch.tokens.shape[1] - 1 for batch in batches} == set(range(SHORTEST, 65))
    assert {len(read(batch.tokens[0], batch.questions)[0]) for batch in batches} == set(range(2, 9))


def test_sequences_are_short_at_first():
    """Half of the way to 64 after 300 of 1000 steps, the rest after 600."""
    lengths = [training_batch(CONFIG, seed=0, step=step).tokens.shape[1] - 1 for step in range(600)]
    assert set(lengths[:10]) == {SHORTEST}
    assert 33 <= max(lengths[:300]) <= SHORTEST + (64 - SHORTEST) / 2 < max(lengths) < 64
    assert SHORTEST in lengths[300:], "short ones stay"


def test_what_was_answered_says_nothing_about_the_next_answer():
    """Were every key asked for once, the last answer would be the value that is left."""
    batches = [training_batch(CONFIG, seed=0, step=step) for step in range(900, 1000)]
    last_was_asked_before = [row[-1] in row[:-1] for batch in batches for row in batch.places if len(row) == 12]
    assert 0.5 < np.mean(last_was_asked_before) < 0.99


def test_a_batch_is_a_function_of_seed_and_step():
    np.random.seed(1)
    state = np.random.get_state()[1].copy()
    first = training_batch(CONFIG, seed=5, step=7)
    training_batch(CONFIG, seed=5, step=8)
    again = training_batch(CONFIG, seed=5, step=7)
    assert np.array_equal(first.tokens, again.tokens)
    assert not any(
        np.array_equal(first.tokens, training_batch(CONFIG, seed=seed, step=step).tokens)
        for seed, step in ((5, 8), (6, 7), (7, 5))
    )
    assert np.array_equal(np.random.get_state()[1], state)


# Testing -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "pairs"), [(64, 8), (65, 1), (160, 32), (161, 32), (2048, 8), (10, 2)])
def test_every_pair_is_asked_for_once(length, pairs):
    tokens, places = evaluation_sequence(CONFIG, length=length, pairs=pairs, index=0)
    assert tokens.shape == (length + 1,)
    stated, asked = read(tokens, pairs)
    assert len(stated) == pairs and dict(asked) == stated
    assert len(set(stated.values())) == pairs, "an answer must not stand elsewhere too"
    assert [(tokens[place], tokens[place + 1]) for place in places] == asked


@pytest.mark.parametrize("length", [64, 77, 512])
@pytest.mark.parametrize("pairs", [5, 8, 12])
def test_pairs_stand_at_the_depths(length, pairs):
    depths = (0.0, 0.25, 0.5, 0.75, 1.0)
    for index in range(5):
        tokens, places = evaluation_sequence(CONFIG, length=length, pairs=pairs, depths=depths, index=index)
        stated, asked = read(tokens, len(depths))
        assert len(tokens) == length + 1 and len(stated) == pairs and len(dict(asked)) == 5
        room = length + 1 - 10 - 2  # one before the last place where a pair fits
        assert sorted(places.tolist()) == [round(depth * room) for depth in depths]
        assert 0 in places and room in places
        assert [(tokens[place], tokens[place + 1]) for place in places] == asked
        assert all(stated[key] == answer for key, answer in asked)


def test_questions_are_in_no_order_of_depth():
    sequences = [evaluation_sequence(CONFIG, length=64, pairs=8, depths=(0.0, 0.5, 1.0), index=i)[1] for i in range(60)]
    assert len({tuple(places.tolist()) for places in sequences}) == 6


def test_pairs_stand_anywhere():
    places = np.concatenate([evaluation_sequence(CONFIG, length=64, pairs=2, index=i)[1] for i in range(1500)])
    found = np.bincount(places, minlength=60)
    assert len(found) == 60  # 61 tokens of context
    assert found.min() > 20 and found.max() < 85  # 50 expected


def test_a_sequence_does_not_depend_on_the_others():
    one = evaluation_sequence(CONFIG, length=64, pairs=8, index=2)
    other = RecallConfig(lengths=(64, 128), keys=32, pairs=8, samples=7, steps=3, depths=(0.5,), test_pairs=(2,))
    many = evaluation_sequences(other, length=64, pairs=8)
    assert many.tokens.shape == (7, 65)
    assert np.array_equal(many.tokens[2], one[0]) and np.array_equal(many.places[2], one[1])
    different = [evaluation_sequence(CONFIG, length=64, pairs=8, index=i)[0].tobytes() for i in range(20)]
    assert len(set(different)) == 20


def test_not_the_sequences_of_training():
    batches = [training_batch(CONFIG, seed=0, step=step) for step in range(800, 1000)]
    trained = {tokens.tobytes() for batch in batches for tokens in batch.tokens}
    assert evaluation_sequence(CONFIG, length=64, pairs=8, index=0)[0].tobytes() not in trained


def test_fits():
    assert fits(40, 8) and not fits(39, 8)
    evaluation_sequence(CONFIG, length=40, pairs=8, index=0, depths=(0.0, 0.25, 0.5, 0.75, 1.0))


def test_hash_of_what_is_asked():
    assert data_hash(CONFIG) == data_hash(RecallConfig(lengths=(128,), keys=32, samples=3, steps=9))
    assert data_hash(CONFIG) != data_hash(RecallConfig(lengths=(64,), keys=32, samples=4))
