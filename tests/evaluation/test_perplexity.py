"""Perplexity against length, compared with a slow re-implementation: one window at a time, all logits, float64."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dape.bench import memory
from dape.data.store import TokenStream
from dape.data.windows import evaluation_ends
from dape.errors import UsageError
from dape.evaluation import perplexity
from dape.evaluation.config import EvalConfig
from dape.evaluation.perplexity import Measured, Subject, as_rows, batch_size, in_context_row, measure, window_nll
from dape.models.config import DecoderConfig
from dape.models.decoder import DecoderLM
from dape.results.records import Row

VOCABULARY = 11
SUBJECT = Subject(
    run="rope-seed3",
    method="rope",
    seed=3,
    train_length=8,
    step=70,
    data_hash="abc",
    tokenizer="bytes",
    extra={"torch": "2"},
)


def model_with(encoding: str = "dape-kerple", **options) -> DecoderLM:
    torch.manual_seed(0)
    config = DecoderConfig(
        layers=2, width=16, heads=2, vocabulary=VOCABULARY, encoding=encoding, train_length=8, **options
    )
    model = DecoderLM(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2)  # far from uniform, so that a wrong context shows
    return model


@pytest.fixture(scope="module")
def stream() -> TokenStream:
    """Documents of 1 to 60 tokens, 1200 in all, in two shards."""
    draw = np.random.default_rng(0)
    lengths = []
    while sum(lengths) < 1200:
        lengths.append(int(draw.integers(1, 61)))
    tokens = draw.integers(0, VOCABULARY, sum(lengths)).astype(np.uint16)
    return TokenStream([tokens[:500], tokens[500:]], np.cumsum(lengths))


def literal_nats(model: DecoderLM, window: np.ndarray, scored: int) -> list[float]:
    """Of the last tokens of one window, from the logits of the whole window."""
    model = copy.deepcopy(model).double()
    tokens = torch.from_numpy(window)
    with torch.no_grad():
        log = torch.log_softmax(model(tokens[None, :-1])[0], dim=-1)
    return [-float(log[i - 1, tokens[i]]) for i in range(1, len(window))][-scored:]


def measured_at(model: DecoderLM, stream: TokenStream, **settings) -> dict[int, Measured]:
    return {found.length: found for found in measure(model, stream, EvalConfig(**settings))}


# Values --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["rope", "dape-kerple", "fire", "t5", "sinusoidal", "cope"])
def test_last_k(stream, encoding):
    model = model_with(encoding)
    found = measured_at(model, stream, lengths=(24, 8, 13), last_k=5, windows=4, reach=24)
    assert list(found) == [8, 13, 24]  # shortest first
    ends = evaluation_ends(stream, reach=24, k=5, windows=4, same_document=False)
    assert len(ends) == 4
    for length, measured in found.items():
        expected = [literal_nats(model, stream.read(int(e) - length - 1, int(e)), 5) for e in ends]
        np.testing.assert_allclose(measured.nll, expected, rtol=1e-4, atol=1e-5)
        assert measured.first == length - 5
        assert measured.perplexity == pytest.approx(math.exp(np.mean(expected)), rel=1e-5)


def test_the_context_matters_in_this_test(stream):
    """Otherwise the others could not fail."""
    found = measured_at(model_with(), stream, lengths=(8, 24), last_k=5, windows=4)
    assert abs(found[8].mean - found[24].mean) > 1e-3


@pytest.mark.parametrize("k", [1, 8])
def test_one_token_and_all_tokens(stream, k):
    model = model_with("rope")
    found = measured_at(model, stream, lengths=(8,), last_k=k, windows=3, reach=8)[8]
    ends = evaluation_ends(stream, reach=8, k=k, windows=3, same_document=False)
    expected = [literal_nats(model, stream.read(int(e) - 9, int(e)), k) for e in ends]
    np.testing.assert_allclose(found.nll, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["packed", "same_document"])
def test_full_and_per_position(stream, mode):
    model = model_with()
    ends = evaluation_ends(stream, reach=21, k=7, windows=4, same_document=mode == "same_document")
    settings = EvalConfig(lengths=(7, 21), protocol="full", windows=4, mode=mode, last_k=7, reach=21)
    for measured in measure(model, stream, settings):
        length = measured.length
        expected = np.array([literal_nats(model, stream.read(int(e) - length - 1, int(e)), length) for e in ends])
        np.testing.assert_allclose(measured.nll, expected, rtol=1e-4, atol=1e-5)
        (row,) = as_rows(measured, SUBJECT, settings)
        assert row.value == pytest.approx(math.exp(expected.mean()), rel=1e-5) and row.scored_tokens == 4 * length
        rows = as_rows(measured, SUBJECT, replace(settings, protocol="per_position"))
        buckets = {7: [(0, 0), (1, 1), (2, 3), (4, 6)], 21: [(0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 20)]}[length]
        assert [(row.extra["first_position"], row.extra["last_position"]) for row in rows] == buckets
        for row, (first, last) in zip(rows, buckets, strict=True):
            assert row.metric == "nll" and row.scored_tokens == 4 * (last - first + 1)
            assert row.value == pytest.approx(expected[:, first : last + 1].mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("length", "buckets"),
    [
        (1, [(0, 0)]),
        (2, [(0, 0), (1, 1)]),
        (3, [(0, 0), (1, 1), (2, 2)]),
        (4, [(0, 0), (1, 1), (2, 3)]),
        (5, [(0, 0), (1, 1), (2, 3), (4, 4)]),
        (8, [(0, 0), (1, 1), (2, 3), (4, 7)]),
    ],
)
def test_buckets_of_positions(length, buckets):
    assert perplexity._doublings(length) == buckets


@pytest.mark.parametrize(("windows", "covered"), [(3, 60), (1000, 120)])
def test_nonoverlap_scores_every_token_once(stream, windows, covered):
    """133 tokens: the last 12 are too few for another window of 20, and are left out at every length."""
    model, short = model_with("alibi"), TokenStream([stream.read(0, 133)], np.array([133]))
    found = measured_at(model, short, lengths=(10, 20), protocol="nonoverlap", windows=windows, reach=20)
    for length, measured in found.items():
        starts = range(0, covered, length)
        expected = [literal_nats(model, short.read(s, s + length + 1), length) for s in starts]
        assert measured.nll.size == covered
        np.testing.assert_allclose(measured.nll, expected, rtol=1e-4, atol=1e-5)


def test_in_context_gain(stream):
    """Nats at positions 8 to 12 minus nats at positions 98 to 102, of windows at the training length."""
    model, subject = model_with("rope"), replace(SUBJECT, train_length=110)
    row = in_context_row(model, stream, subject, windows=3)
    ends = evaluation_ends(stream, reach=110, k=110, windows=3, same_document=False)
    nats = np.array([literal_nats(model, stream.read(int(e) - 111, int(e)), 110) for e in ends])
    early, late = nats[:, 8:13].mean(), nats[:, 98:103].mean()
    assert row.metric == "in_context_gain" and row.value == pytest.approx(early - late, abs=1e-4)
    assert (row.extra["nll_at_10"], row.extra["nll_at_100"]) == pytest.approx((early, late), abs=1e-4)
    assert row.scored_tokens == 30 and row.extra["torch"] == "2"
    with pytest.raises(UsageError, match="training length above 102, got 64"):
        in_context_row(model, stream, replace(SUBJECT, train_length=64), windows=3)


# The same tokens -----------------------------------------------------------------------------------------------------


def windows_seen(monkeypatch, stream, **settings) -> dict[int, np.ndarray]:
    """The windows that the model gets to see, by length."""
    seen = {}

    def spy(model, tokens, scored, *, seed=0):
        seen.setdefault(tokens.shape[1] - 1, []).append(tokens.numpy())
        return torch.zeros(len(tokens), scored)

    monkeypatch.setattr(perplexity, "window_nll", spy)
    list(measure(model_with("nope"), stream, EvalConfig(**settings)))
    return {length: np.concatenate(parts) for length, parts in seen.items()}


@pytest.mark.parametrize("mode", ["packed", "same_document"])
def test_every_length_scores_the_same_tokens(monkeypatch, stream, mode):
    seen = windows_seen(monkeypatch, stream, lengths=(6, 12, 30), last_k=6, windows=9, mode=mode, reach=30)
    ends = evaluation_ends(stream, reach=30, k=6, windows=9, same_document=mode == "same_document")
    targets = np.stack([stream.read(int(e) - 6, int(e)) for e in ends])
    for length, windows in seen.items():
        assert windows.shape == (9, length + 1)
        assert (windows[:, -6:] == targets).all()
        assert (windows[:, -7:] == seen[30][:, -7:]).all()
    scored = {position for e in ends for position in range(int(e) - 6, int(e))}
    assert len(scored) == 9 * 6  # none twice


@pytest.mark.parametrize("protocol", ["last_k", "full", "nonoverlap", "per_position"])
@pytest.mark.parametrize("mode", ["packed", "same_document"])
def test_a_perplexity_does_not_depend_on_the_other_lengths(stream, protocol, mode):
    if protocol == "nonoverlap" and mode == "same_document":
        return
    model, settings = model_with(), {"last_k": 4, "windows": 5, "protocol": protocol, "mode": mode}
    alone = measured_at(model, stream, lengths=(8,), **settings)[8]
    among = measured_at(model, stream, lengths=(4, 8, 30), **settings)[8]
    np.testing.assert_array_equal(alone.nll, among.nll)
    assert alone.reach == among.reach == (32 if mode == "same_document" else 512)
    if protocol != "nonoverlap":  # which reads from the beginning
        other = measured_at(model, stream, lengths=(8,), **settings, reach=30)[8]
        assert abs(other.mean - alone.mean) > 1e-3  # other tokens: this test could fail


def test_same_document_means_within_one_document(monkeypatch, stream):
    windows = windows_seen(monkeypatch, stream, lengths=(30,), last_k=6, windows=9, mode="same_document")[30]
    text, starts = stream.read(0, len(stream)), [0, *stream.document_ends[:-1]]
    documents = [text[a:b] for a, b in zip(starts, stream.document_ends, strict=True)]
    # Long documents whose tokens are random: a window is found in one of them by its content.
    for window in windows:
        assert any(
            (document[i : i + 31] == window).all() for document in documents for i in range(max(0, len(document) - 30))
        )


@pytest.mark.parametrize("at_once", [1, 20, 10**9])
def test_results_do_not_depend_on_the_batch_size(monkeypatch, stream, at_once):
    model = model_with("dape-kerple")
    expected = measured_at(model, stream, lengths=(8, 20), last_k=6, windows=7)
    sizes = []
    real = perplexity.window_nll

    def spy(model, tokens, *args, **kwargs):
        sizes.append(len(tokens))
        return real(model, tokens, *args, **kwargs)

    monkeypatch.setattr(perplexity, "window_nll", spy)
    monkeypatch.setattr(perplexity, "TOKENS_AT_ONCE", at_once)
    found = measured_at(model, stream, lengths=(8, 20), last_k=6, windows=7)
    assert sizes == {1: [1] * 14, 20: [2, 2, 2, 1] + [1] * 7, 10**9: [7, 7]}[at_once]
    for length in (8, 20):
        np.testing.assert_allclose(found[length].nll, expected[length].nll, rtol=1e-4, atol=1e-5)


def test_little_memory_means_small_batches(monkeypatch):
    model = model_with()
    assert batch_size(model, 64) == perplexity.TOKENS_AT_ONCE // 64
    monkeypatch.setattr(perplexity, "free_memory", lambda device: 4 * 4 * 16 * 16 * 64 * 3)
    assert batch_size(model, 64) == 3
    monkeypatch.setattr(perplexity, "free_memory", lambda device: 0.0)
    assert batch_size(model, 64) == 1


def test_randomised_positions_do_not_depend_on_memory_nor_on_what_was_drawn_before(monkeypatch, stream):
    model = model_with("randomized-rope")
    settings = {"lengths": (8, 20), "last_k": 6, "windows": 11}
    first = measured_at(model, stream, **settings)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    monkeypatch.setattr(perplexity, "free_memory", lambda device: 0.0)
    again = measured_at(model, stream, **settings)
    for length in (8, 20):
        assert (first[length].nll == again[length].nll).all()
    assert torch.equal(torch.get_rng_state(), state)


def test_logits_in_pieces(monkeypatch, stream):
    """A long window with a large vocabulary is not projected at once."""
    model, tokens = model_with(), torch.from_numpy(stream.read(0, 31)).view(1, -1)
    whole = window_nll(model, tokens, 20)
    monkeypatch.setattr(perplexity, "LOGITS_AT_ONCE", 3 * model.config.vocabulary)
    widths = []
    model.head.register_forward_hook(lambda module, args, out: widths.append(out.shape[1]))
    torch.testing.assert_close(window_nll(model, tokens, 20), whole)
    assert widths == [3] * 6 + [2]


def test_only_scored_tokens_are_projected(stream):
    model, seen = model_with(), []
    model.head.register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape)))
    measured_at(model, stream, lengths=(24,), last_k=5, windows=4)
    assert seen == [(4, 5, VOCABULARY)]


def test_progress_is_told(stream):
    told = []
    settings = EvalConfig(lengths=(8, 9), last_k=4, windows=3)
    list(measure(model_with("nope"), stream, settings, watch=lambda *args: told.append(args)))
    assert told == [(8, 3, 3), (9, 3, 3)]


# Refused -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lengths": ()}, "`lengths` needs at least one length"),
        ({"lengths": (0, 8)}, "`lengths` must be positive, got 0"),
        ({"lengths": (-3,)}, "`lengths` must be positive, got -3"),
        ({"last_k": 0}, "`last_k` must be at least 1"),
        ({"windows": 0}, "`windows` must be at least 1"),
        ({"lengths": (4, 8), "last_k": 5}, "length 4 is shorter than the 5 tokens to score.*Use `last_k` 4"),
        ({"protocol": "nonoverlap", "mode": "same_document"}, "nonoverlap cuts the whole text"),
        ({"lengths": (5000,)}, r"held-out text has \d+ tokens, too few for evaluation length 5000, which needs 5001"),
        ({"lengths": (61,), "mode": "same_document"}, r"longest held-out document has \d+ tokens.*\(packed\) can be"),
        ({"lengths": (5000,), "protocol": "nonoverlap"}, r"held-out text has \d+ tokens, too few for .*length 5000"),
        ({"lengths": (1000,)}, r"reach back 512 tokens by default.*Use `reach` 1000"),
        ({"lengths": (50,), "mode": "same_document"}, r"reach back 32 tokens by default.*Use `reach` 50"),
        ({"lengths": (8, 16), "reach": 12}, "length 16 is beyond `reach` 12.*Use `reach` 16 or more"),
    ],
    ids=str,
)
def test_impossible_settings(stream, settings, words):
    with pytest.raises(UsageError, match=words):
        list(
            measure(model_with("nope"), stream, EvalConfig(**{"lengths": (8,), "last_k": 4, "windows": 2, **settings}))
        )


def test_the_longest_length_named_works(stream):
    longest = len(stream) - 1
    (found,) = measure(model_with("nope"), stream, EvalConfig(lengths=(longest,), last_k=4, windows=2, reach=longest))
    assert found.nll.shape == (1, 4)


# Rows ----------------------------------------------------------------------------------------------------------------


def test_rows_are_complete(stream):
    settings = EvalConfig(lengths=(8, 16), last_k=4, windows=5, mode="same_document")
    measured = list(measure(model_with("rope"), stream, settings))
    for found in measured:
        (row,) = as_rows(found, SUBJECT, settings)
        expected = {
            "run": "rope-seed3", "method": "rope", "seed": 3, "train_length": 8, "length": found.length, "step": 70,
            "metric": "perplexity", "scored_tokens": 20, "protocol": "last_k", "data_hash": "abc", "k": 4, "windows": 5,
            "mode": "same_document", "tokenizer": "bytes", "extra": {"torch": "2"}, "note": "", "reach": 32,
        }  # fmt: skip
        got = row.as_dict()
        assert {name: got[name] for name in expected} == expected
        assert row.value == pytest.approx(math.exp(found.nll.astype(np.float64).mean()))
        assert row.window_nll == pytest.approx(found.nll.mean(axis=1), abs=1e-5) and len(row.window_nll) == 5
        assert Row.from_json(row.as_json()) == row


@pytest.mark.parametrize(("nll", "value"), [(800.0, math.inf), (math.inf, math.inf), (math.nan, math.nan), (0.0, 1.0)])
def test_models_that_have_diverged(nll, value):
    measured = Measured(8, np.full((2, 4), nll, np.float32), 4, 8)
    (row,) = as_rows(measured, SUBJECT, EvalConfig(lengths=(8,), last_k=4, windows=2))
    assert row.value == pytest.approx(value, nan_ok=True)
    back = Row.from_json(row.as_json())
    assert back.value == pytest.approx(value, nan_ok=True)


def test_many_windows_are_averaged_in_float64():
    nll = np.full((1000, 1000), 0.1, np.float32)
    nll[0, 0] = 20000.0
    assert Measured(8, nll, 0, 8).mean == pytest.approx(0.1 + (20000 - 0.1) / 1e6, rel=1e-7)


# Long windows --------------------------------------------------------------------------------------------------------

LONG = """
import numpy as np, torch
from dape.data.store import TokenStream
from dape.evaluation.config import EvalConfig
from dape.evaluation.perplexity import measure
from dape.models.config import DecoderConfig
from dape.models.decoder import DecoderLM

def evaluation(encoding, length):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DecoderLM(DecoderConfig(layers=2, width=32, heads=4, encoding=encoding, train_length=64)).eval()
    tokens = np.random.default_rng(0).integers(0, 257, length + 300).astype(np.uint16)
    stream = TokenStream([tokens], np.array([len(tokens)]))
    def run(length):
        (found,) = measure(model, stream, EvalConfig(lengths=(length,), last_k=256, windows=1, reach=length))
        assert np.isfinite(found.nll).all() and found.nll.shape == (1, 256)
        assert 4 < found.mean < 8
    run(512)
    return lambda: run(length)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("encoding", "length"), [("rope", 16384), ("dape-kerple", 8192), ("dape-fire", 8192)])
def test_memory_of_long_windows(tmp_path, monkeypatch, encoding, length):
    """The scores of one layer alone would take 4 heads x 16384^2 x 4 bytes = 4.3 GB, 1.1 GB at 8192."""
    (tmp_path / "long_windows.py").write_text(LONG)
    monkeypatch.syspath_prepend(tmp_path)
    assert memory.peak_extra_mb("long_windows:evaluation", encoding=encoding, length=length) < 150 * length / 8192
