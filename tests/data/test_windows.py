"""Training windows against the specification written out literally; evaluation windows against slicing by hand."""

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dape.data.windows import TrainingWindows, evaluation_ends, evaluation_windows
from dape.errors import UsageError

documents_strategy = st.lists(st.lists(st.integers(0, 255), max_size=12), min_size=1, max_size=9)


def literal_window(documents, length, seed, number):
    """Window ``number``: shuffle documents, join, cut with stride ``length``, shuffle windows, epoch by epoch."""
    per_epoch = (sum(len(d) + 1 for d in documents) - 1) // length
    epoch, within = divmod(number, per_epoch)
    generator = np.random.default_rng([seed, epoch])
    joined = [token for i in generator.permutation(len(documents)) for token in [*documents[i], 256]]
    windows = [joined[i : i + length + 1] for i in range(0, len(joined), length)]
    windows = [window for window in windows if len(window) == length + 1]
    assert len(windows) == per_epoch
    return windows[generator.permutation(per_epoch)[within]]


@settings(deadline=None, derandomize=True)
@given(
    documents_strategy, st.integers(1, 7), st.integers(0, 3), st.integers(0, 9), st.integers(1, 5), st.integers(1, 30)
)
def test_batches_are_those_of_the_specification(stream_of, documents, length, seed, step, size, shard_tokens):
    stream = stream_of(documents, shard_tokens)
    if len(stream) <= length:
        return
    batch = TrainingWindows(stream, length=length, seed=seed).batch(step, size)
    expected = [literal_window(documents, length, seed, step * size + i) for i in range(size)]
    assert batch.dtype == np.int64
    np.testing.assert_array_equal(batch, expected)


def test_a_batch_does_not_depend_on_what_was_asked_before(stream_of):
    stream = stream_of([range(i % 13) for i in range(40)])
    windows = TrainingWindows(stream, length=5, seed=1)
    in_order = [windows.batch(step, 4) for step in range(30)]
    for step in (29, 0, 17, 3, 29):
        np.testing.assert_array_equal(windows.batch(step, 4), in_order[step])
        np.testing.assert_array_equal(TrainingWindows(stream, length=5, seed=1).batch(step, 4), in_order[step])


def test_global_random_state_is_left_alone(stream_of):
    before = np.random.get_state()[1].copy()
    TrainingWindows(stream_of([range(99)]), length=5, seed=1).batch(0, 4)
    assert (np.random.get_state()[1] == before).all()


@pytest.mark.parametrize("length", [1, 7, 64])
def test_every_epoch_has_each_window_once(stream_of, length):
    """All tokens are different here, so a window is known by its first token."""
    stream = stream_of([range(400)])
    stream._shards[0][-1] = 400
    windows = TrainingWindows(stream, length=length, seed=0)
    assert windows.windows_per_epoch == 400 // length
    epochs = windows.batch(0, 3 * windows.windows_per_epoch)[:, 0].reshape(3, -1)
    for epoch in epochs:
        assert sorted(epoch) == list(range(0, windows.windows_per_epoch * length, length))
    assert length == 400 or not (epochs[0] == epochs[1]).all()


def test_seeds_and_epochs_give_other_orders(stream_of):
    stream = stream_of([[i] * 9 for i in range(50)])
    first = TrainingWindows(stream, length=7, seed=0)
    other = TrainingWindows(stream, length=7, seed=1)
    per_epoch = first.windows_per_epoch
    assert not np.array_equal(first.batch(0, per_epoch), other.batch(0, per_epoch))
    # Documents too are joined in another order: the multiset of windows itself changes between epochs.
    epochs = first.batch(0, per_epoch), first.batch(1, per_epoch)
    assert not np.array_equal(*(np.sort(epoch.view([("", np.int64)] * 8), axis=0) for epoch in epochs))


def test_targets_of_an_epoch_are_all_tokens_but_one(stream_of):
    documents = [[i] * (i % 5 + 1) for i in range(31)]
    stream = stream_of(documents)
    length = next(n for n in range(3, 20) if (len(stream) - 1) % n == 0)
    windows = TrainingWindows(stream, length=length, seed=3)
    targets = windows.batch(0, windows.windows_per_epoch)[:, 1:].ravel()
    missing = np.bincount(stream.read(0, len(stream)), minlength=257) - np.bincount(targets, minlength=257)
    assert missing.min() == 0 and missing.sum() == 1


@pytest.mark.parametrize("length", [30, 31])
def test_text_shorter_than_a_window_is_refused(stream_of, length):
    stream = stream_of([range(29)])  # and the end mark
    with pytest.raises(UsageError, match=r"has 30 tokens.*longest possible training length is 29"):
        TrainingWindows(stream, length=length, seed=0)
    assert TrainingWindows(stream, length=29, seed=0).batch(0, 2).shape == (2, 30)


@pytest.mark.parametrize("wrong", [{"length": 0}, {"seed": -1}])
def test_impossible_windows_are_refused(stream_of, wrong):
    with pytest.raises(UsageError):
        TrainingWindows(stream_of([range(29)]), **{"length": 3, "seed": 0, **wrong})


def test_impossible_batches_are_refused(stream_of):
    windows = TrainingWindows(stream_of([range(29)]), length=3, seed=0)
    for step, size in ((-1, 4), (0, 0)):
        with pytest.raises(ValueError, match="the step must be at least 0 and the size at least 1"):
            windows.batch(step, size)


@pytest.mark.parametrize("shards", [1, 40])
def test_a_batch_of_a_large_corpus_takes_less_than_a_millisecond(stream_of, shards):
    generator = np.random.default_rng(0)
    stream = stream_of([[0]] * 700, 2)
    stream._shards = np.array_split(generator.integers(0, 256, 11_000_000).astype(np.uint16), shards)
    stream._starts = np.cumsum([0, *map(len, stream._shards)])
    stream.document_ends = np.append(np.sort(generator.choice(10_999_999, 699, replace=False)) + 1, 11_000_000)
    windows = TrainingWindows(stream, length=64, seed=0)
    windows.batch(0, 32)  # draws the order of the epoch

    def seconds(step):
        start = time.perf_counter()
        windows.batch(step, 32)
        return time.perf_counter() - start

    assert min(seconds(step) for step in range(1, 50)) < (1e-3 if shards == 1 else 3e-3)


# Evaluation ----------------------------------------------------------------------------------------------------------


def room_by_hand(lengths, longest, k):
    """How many windows fit: the first needs longest + 1 tokens, every other one k more."""
    return sum((n - longest - 1) // k + 1 for n in lengths if n > longest)


@settings(deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 90), min_size=1, max_size=12),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(1, 30),
    st.booleans(),
    st.integers(0, 3),
)
def test_ends_keep_their_promises(stream_of, lengths, longest, k, windows, same_document, seed):
    k = min(k, longest)
    stream = stream_of([[0] * n for n in lengths])
    blocks = [n + 1 for n in lengths] if same_document else [len(stream)]
    arguments = {"reach": longest, "k": k, "windows": windows, "same_document": same_document, "seed": seed}
    if max(blocks) <= longest:
        with pytest.raises(UsageError, match=rf"has {max(blocks)} tokens.* that works is {max(blocks) - 1}\."):
            evaluation_ends(stream, **arguments)
        return
    ends = evaluation_ends(stream, **arguments)
    assert len(ends) == min(windows, room_by_hand(blocks, longest, k))
    assert all(b - a >= k for a, b in pairwise(ends))  # sorted, distinct, and no token is scored twice
    assert ends[0] > longest and ends[-1] <= len(stream)
    if same_document:
        document_of = np.repeat(np.arange(len(blocks)), blocks)
        assert all(document_of[e - 1] == document_of[e - longest - 1] for e in ends)
    np.testing.assert_array_equal(ends, evaluation_ends(stream, **arguments))


@pytest.mark.parametrize("same_document", [False, True])
def test_ends_are_spread_over_the_stream_and_jittered(stream_of, same_document):
    stream = stream_of([[0] * 999] * 100)
    arguments = {"reach": 100, "k": 10, "windows": 200, "same_document": same_document}
    ends = evaluation_ends(stream, **arguments, seed=0)
    assert len(ends) == 200
    per_tenth = np.histogram(ends, 10, (0, len(stream)))[0]
    assert per_tenth.min() >= 15 and per_tenth.max() <= 25
    assert len(set(np.diff(ends))) > 20
    assert not np.array_equal(ends, evaluation_ends(stream, **arguments, seed=1))


def test_all_of_a_tight_text_is_used(stream_of):
    stream = stream_of([range(20)])  # 21 tokens: windows of 6 + 1 with 5 scored tokens end at 7, 12, 17 or 1-4 later
    ends = evaluation_ends(stream, reach=6, k=5, windows=99, same_document=True)
    assert len(ends) == 3 and ends[0] >= 7 and ends[-1] <= 21
    assert list(evaluation_ends(stream, reach=20, k=20, windows=99, same_document=False)) == [21]


def test_targets_are_the_same_at_every_length(stream_of):
    stream = stream_of([range(i, i + 100) for i in range(0, 150, 10)], shard_tokens=37)
    ends = evaluation_ends(stream, reach=64, k=8, windows=20, same_document=False)
    everything = list(stream.read(0, len(stream)))
    for length in (8, 9, 33, 64):
        windows = evaluation_windows(stream, ends, length)
        assert windows.shape == (20, length + 1) and windows.dtype == np.int64
        np.testing.assert_array_equal(windows, [everything[e - length - 1 : e] for e in ends])
        np.testing.assert_array_equal(windows[:, -8:], evaluation_windows(stream, ends, 64)[:, -8:])


@pytest.mark.parametrize("wrong", [{"k": 0}, {"k": 11}, {"windows": 0}])
def test_impossible_evaluations_are_refused(stream_of, wrong):
    with pytest.raises(UsageError):
        evaluation_ends(stream_of([range(99)]), **{"reach": 10, "k": 5, "windows": 3, "same_document": True, **wrong})


def test_windows_that_would_begin_before_the_text_are_refused(stream_of):
    stream = stream_of([range(99)])
    assert evaluation_windows(stream, np.array([11]), 10).tolist() == [list(range(11))]
    assert evaluation_windows(stream, np.array([], int), 10).shape == (0, 11)
    with pytest.raises(ValueError, match="no window"):
        evaluation_windows(stream, np.array([50, 10]), 10)
    with pytest.raises(IndexError):
        evaluation_windows(stream, np.array([101]), 10)
