"""What cannot be meant is refused, with what is possible."""

import re

import pytest

from dape.errors import UsageError
from dape.reading import as_record
from dape.tasks.recall.config import RecallConfig, TextConfig, depth_places


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tasks": ()}, "`tasks` needs at least one"),
        ({"lengths": ()}, "`lengths` needs at least one"),
        ({"depths": ()}, "`depths` needs at least one"),
        ({"lengths": (0, 64)}, "`lengths` must be positive, got 0"),
        ({"depths": (0.5, 1.5)}, "between 0 (the beginning) and 1 (the end), got 1.5"),
        ({"depths": (-0.1,)}, "got -0.1"),
        ({"depths": (float("nan"),)}, "got nan"),
        ({"depths": (0.5, 0.5)}, "`depths` has a value twice"),
        ({"samples": 0}, "`samples` must be at least 1, got 0"),
        ({"pairs": 0}, "`pairs` must be at least 1, got 0"),
        ({"pairs": 16}, "`pairs` may be at most 15"),
        ({"seed": -1}, "`seed` must be 0 or more"),
    ],
)
def test_text(settings, words):
    TextConfig(tasks=("recall",), lengths=(64,)).check()
    with pytest.raises(UsageError, match=re.escape(words)):
        TextConfig(**{"tasks": ("recall",), "lengths": (64,), **settings}).check()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lengths": (32,)}, "length 32 is too short for 8 pairs and their questions; it must be at least 40"),
        ({"depths": (2.0,)}, "got 2"),
        ({"depths": (0.0, 0.01)}, "too close"),
        ({"pairs": 4}, "5 `depths` need at least as many `pairs`"),
        ({"pairs": 1}, "`pairs` must be 2 to 32"),
        ({"pairs": 40}, "`pairs` must be 2 to 32"),
        ({"test_pairs": (4, 33)}, "`test_pairs` 1 to 32"),
        (
            {"train_length": 39},
            "`train_length` 39 is too short for 8 pairs and their questions; it must be at least 40",
        ),
        ({"steps": 0}, "`steps` must be at least 1"),
        ({"lr": 0.0}, "`lr`"),
        ({"lr": float("nan")}, "`lr`"),
    ],
)
def test_recall(settings, words):
    RecallConfig(lengths=(64,)).check()
    with pytest.raises(UsageError, match=re.escape(words)):
        RecallConfig(**{"lengths": (64,), **settings}).check()


def test_the_smallest_that_is_allowed_works():
    """The lengths that the messages name."""
    for pairs in (8, 5):
        smallest = 5 * pairs
        RecallConfig(lengths=(smallest,), pairs=pairs, train_length=smallest).check()
        for name in ("lengths", "train_length"):
            settings = {"lengths": (smallest,), "train_length": smallest}
            settings[name] = (smallest - 1,) if name == "lengths" else smallest - 1
            with pytest.raises(UsageError, match=f"at least {smallest}"):
                RecallConfig(pairs=pairs, **settings).check()


def test_depth_places():
    assert depth_places((1.0, 0.0, 0.5), 12) == [0, 5, 10]


def test_plain_data_comes_back():
    config = RecallConfig(lengths=(64, 128), depths=(0.0, 1.0))
    plain = {**vars(config), "lengths": [64, 128], "depths": [0.0, 1.0], "test_pairs": list(config.test_pairs)}
    assert as_record(RecallConfig, plain) == config
