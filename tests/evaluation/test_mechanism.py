"""Feeding f something else: against logits put together by hand."""

import numpy as np
import pytest
import torch

from dape.evaluation.mechanism import ByLag, Fed, dissect, gains, mean_interval, swapped, token_groups
from dape.evaluation.perplexity import Measured, window_nll
from dape.models.config import DecoderConfig
from dape.models.decoder import DecoderLM
from dape.ops.attention import attention
from dape.positional.build import build
from dape.positional.grid import Grid

LENGTH = 12


def model_with(encoding: str = "dape-kerple", **options) -> DecoderLM:
    torch.manual_seed(0)
    config = DecoderConfig(
        layers=2, width=16, heads=2, vocabulary=11, encoding=encoding, train_length=8, encoding_options=options
    )
    model = DecoderLM(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    return model


@pytest.fixture
def windows() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 11, (6, LENGTH + 1))


def test_attention_with_f_of_another_text():
    """softmax(A + B + f(A', B)) v by hand, in float64."""
    torch.manual_seed(0)
    pe = build("dape-kerple", num_heads=2, head_dim=4, train_length=8).double()
    q, k, v = (torch.randn(3, 2, LENGTH, 4, dtype=torch.float64) for _ in range(3))
    found = attention(q, k, v, Fed(pe, swapped))
    scores = q @ k.transpose(-1, -2) / 2
    bias = pe.bias(torch.arange(LENGTH), torch.arange(LENGTH))
    other = pe.f(scores[[2, 0, 1]], bias)
    hidden = torch.ones(LENGTH, LENGTH).triu(1).bool()
    weights = (scores + bias + other).masked_fill(hidden, -torch.inf).softmax(-1)
    torch.testing.assert_close(found, weights @ v)
    assert (found - attention(q, k, v, pe)).abs().max() > 1e-3


def test_the_usual_is_the_models_own(windows):
    model = model_with()
    found = dissect(model, windows, 5)
    expected = window_nll(model, torch.from_numpy(windows), 5).numpy()
    np.testing.assert_allclose(found.usual, expected, atol=1e-4)  # float32, summed in another order
    assert np.abs(found.swapped - expected).max() > 1e-3 and np.abs(found.frozen - expected).max() > 1e-3
    mean, low, high = found.cost("swapped")
    assert low < mean < high and mean == pytest.approx((found.swapped - found.usual).mean())


def test_without_content_nothing_changes(windows):
    """f(B) reads no scores: neither swapping nor freezing can matter, and f varies with the lag alone."""
    found = dissect(model_with(variant="bias_only"), windows, 5)
    np.testing.assert_allclose(found.swapped, found.usual, atol=1e-4)
    np.testing.assert_allclose(found.frozen, found.usual, atol=1e-4)
    for layer in found.layers:
        assert layer.share().max() < 1e-6 and layer.content_share().max() < 1e-6


def test_means_and_variances_by_lag():
    torch.manual_seed(0)
    pe = build("dape-kerple", num_heads=2, head_dim=4, train_length=8).double()
    scores, grid = torch.randn(3, 2, 7, 7, dtype=torch.float64), Grid.of_length(7, 7, causal=True)
    layer = ByLag(pe)
    for rows in (slice(0, 4), slice(4, 7)):  # as row blocks come
        layer.record(scores[:, :, rows], Grid.at(torch.arange(7)[rows], torch.arange(7), causal=True))
    f = pe.mixed(scores, grid).detach()
    for lag in range(7):
        a, b = (x.diagonal(-lag, 2, 3).transpose(0, 1).flatten(1) for x in (scores, f))
        frozen = layer.frozen(scores, grid).diagonal(-lag, 2, 3)
        torch.testing.assert_close(frozen, a.mean(1).view(1, 2, 1).expand_as(frozen))
        np.testing.assert_allclose(layer.variance("f")[:, lag], b.var(1, unbiased=False).numpy(), atol=1e-9)
    means = torch.stack([f.diagonal(-lag, 2, 3).mean((0, 2)) for lag in range(7)], 1)
    within = layer.variance("f").mean(1)
    np.testing.assert_allclose(layer.share(), within / (within + means.var(1, unbiased=False).numpy()), atol=1e-9)


def test_models_without_f(windows):
    with pytest.raises(ValueError, match="kerple has no f"):
        dissect(model_with("kerple"), windows, 5)
    with pytest.raises(ValueError, match="at least 2 windows"):
        dissect(model_with(), windows[:1], 5)


def test_groups_of_tokens():
    frequency = np.array([0.5, 0.4999, 1e-5, 1e-5, 1e-5])
    windows = np.array([[2, 0, 1, 2, 0, 3], [1, 1, 4, 0, 4, 4]])
    groups = token_groups(windows, 4, frequency)
    wanted = {
        "repeats a rare token": [[0, 1, 0, 0], [0, 0, 1, 1]],
        "repeats a common token": [[0, 0, 1, 0], [0, 0, 0, 0]],
        "rare, first time": [[0, 0, 0, 1], [1, 0, 0, 0]],
        "common, first time": [[1, 0, 0, 0], [0, 1, 0, 0]],
    }
    assert {name: member.astype(int).tolist() for name, member in groups.items()} == wanted


def test_gains_add_up():
    draw = np.random.default_rng(0)
    first, second = (Measured(6, draw.normal(size=(2, 4)), 2, 6) for _ in range(2))
    groups = {"a": np.array([[1, 0, 0, 1], [0, 1, 0, 0]], bool)}
    groups["b"] = ~groups["a"]
    found = gains(first, second, groups)
    assert sum(g.total_share for g in found) == pytest.approx(1) and sum(g.tokens for g in found) == 8
    assert sum(g.nats * g.tokens for g in found) == pytest.approx((second.nll - first.nll).sum())


def test_interval():
    mean, low, high = mean_interval(np.array([1.0, 2.0, 3.0]))
    assert (mean, low, high) == pytest.approx((2.0, 2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5), rel=1e-5)
