"""Scores of models made by hand: one that copies, some that do not look at the text."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from dape.evaluation.answers import Scores, as_rows, predictor, score
from dape.evaluation.perplexity import Subject
from dape.evaluation.questions import Sample
from dape.models.config import DecoderConfig
from dape.models.decoder import DecoderLM

VOCABULARY = 257


def copying(tokens: Tensor, last: int, seed: int) -> Tensor:
    """Says what followed the last time when the latest four tokens stood in the text; 10 : 1 for each other token."""
    logits = torch.zeros(len(tokens), last, VOCABULARY)
    for row, text in enumerate(tokens.tolist()):
        for place in range(last):
            end = len(text) - last + place + 1
            for start in range(end - 5, -1, -1):
                if text[start : start + 4] == text[end - 4 : end]:
                    logits[row, place, text[start + 4]] = math.log(10)
                    break
    return logits


def uniform(tokens: Tensor, last: int, seed: int) -> Tensor:
    return torch.zeros(len(tokens), last, VOCABULARY)


def bigram(tokens: Tensor, last: int, seed: int) -> Tensor:
    """Looks at the latest token only."""
    table = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(0))
    return table[tokens[:, -last:]]


@pytest.mark.parametrize("name", ["passkey", "recall"])
def test_who_copies_knows(task_of, name):
    samples = task_of(name, samples=7).samples(200, 0.3)
    scores = score(copying, samples, batch=3)
    length = samples[0].answer
    assert scores.tokens.tolist() == [length] * 7
    assert scores.exact.all() and scores.first.all() and (scores.right == length).all()
    # Every token has 10 of 266 parts; in the twin 1 until the stated tokens no longer lead astray.
    assert (scores.gain > math.log(10) * 0.99).all() and (scores.gain < math.log(10) * length * 1.01).all()


def test_gain_by_hand():
    """The first token of the answer is 8 times as likely as in the twin, the second twice."""

    def predict(tokens: Tensor, last: int, seed: int) -> Tensor:
        odds = {
            1: [[0.1, 0.05, 0.05, 0.8, 0.0], [0.6, 0.0, 0.0, 0.0, 0.4]],
            2: [[0.8, 0.05, 0.05, 0.1, 0.0], [0.8, 0.0, 0.0, 0.0, 0.2]],
        }
        return torch.tensor([odds[text[0]] for text in tokens.tolist()]).log()

    sample = Sample(np.array([1, 0, 3, 4]), np.array([2, 0, 3, 4]), 2)
    scores = score(predict, [sample, sample, sample], batch=2)
    assert scores.gain.tolist() == pytest.approx([math.log(8) + math.log(2)] * 3)
    assert scores.first.tolist() == [True] * 3
    assert scores.right.tolist() == [1] * 3 and not scores.exact.any()


@pytest.mark.parametrize("predict", [uniform, bigram])
def test_who_does_not_look_gains_exactly_nothing(task_of, predict):
    samples = task_of(samples=6).samples(150, 0.5)
    scores = score(predict, samples, batch=4)
    assert scores.gain.tolist() == [0.0] * 6
    assert not scores.exact.any() and scores.right.sum() < 6


def test_answers_of_several_lengths():
    """Only an answer's own tokens count, wherever the batch begins to predict."""
    tokens = np.array([[9, 1, 2, 3], [9, 1, 2, 3], [9, 1, 2, 3]])
    samples = [Sample(row, row, answer) for row, answer in zip(tokens, (1, 3, 2), strict=True)]

    def predict(given: Tensor, last: int, seed: int) -> Tensor:
        """Right about 1 and 3, wrong about 2."""
        says = torch.tensor([1, 7, 3])[-last:]
        return torch.nn.functional.one_hot(says, 10).float().expand(len(given), -1, -1)

    scores = score(predict, samples, batch=3)
    assert scores.tokens.tolist() == [1, 3, 2]
    assert scores.right.tolist() == [1, 2, 1]
    assert scores.first.tolist() == [True, True, False]
    assert scores.exact.tolist() == [True, False, False]
    one_by_one = score(predict, samples, batch=1)
    assert all(np.array_equal(getattr(scores, n), getattr(one_by_one, n)) for n in ("tokens", "right", "first", "gain"))


def test_seeds(task_of):
    seeds = []

    def predict(tokens: Tensor, last: int, seed: int) -> Tensor:
        seeds.append(seed)
        return uniform(tokens, last, seed)

    score(predict, task_of(samples=5).samples(100, 0.5), batch=2)
    assert seeds == [0, 0, 2, 2, 4, 4], "text and twin are read through the same positions"


@pytest.mark.parametrize("encoding", ["dape-kerple", "randomized-rope"])
def test_predictor_is_the_model(encoding):
    torch.manual_seed(0)
    model = DecoderLM(DecoderConfig(layers=2, width=16, heads=2, vocabulary=11, encoding=encoding, train_length=8))
    tokens = torch.randint(0, 11, (2, 13))
    with torch.no_grad():
        whole = model(tokens, encodings=model.drawn_encodings(13, torch.Generator().manual_seed(4)))
    torch.testing.assert_close(predictor(model)(tokens, 3, 4), whole[:, -3:])


def test_rows():
    scores = Scores(
        tokens=np.array([5, 5, 2]),
        right=np.array([5, 1, 0]),
        first=np.array([True, True, False]),
        gain=np.array([3.0, 1.0, -1.0]),
    )
    subject = Subject(
        run="r", method="rope", seed=1, train_length=8, step=3, data_hash="h", tokenizer="bytes", extra={"cpu": "x"}
    )
    rows = as_rows(scores, subject, task="passkey", length=64, depth=0.25, extra={"statements": 1})
    values = {row.metric: (row.value, row.scored_tokens) for row in rows}
    assert values == {
        "exact": (1 / 3, 3),
        "accuracy": (0.5, 12),
        "first_token": (2 / 3, 3),
        "gain_nats": (1.0, 12),
    }
    for row in rows:
        assert (row.protocol, row.length, row.windows, row.method, row.step) == ("passkey", 64, 3, "rope", 3)
        assert row.extra["depth"] == 0.25 and row.extra["cpu"] == "x" and row.extra["statements"] == 1
    assert rows[-1].extra["standard_error"] == pytest.approx(2 / math.sqrt(3))
