"""Scores that grow with the length: values by hand, and what transformers multiplies its queries by."""

import math

import pytest
import torch

import dape
from dape import Grid
from dape.models.cache import Cache
from dape.models.places import Places


def make(name="logn-nope", **options):
    return dape.build(name, num_heads=2, head_dim=4, train_length=16, **options)


def factors(pe, positions, *, causal=True):
    """By which the queries at these positions are multiplied, [h, t]."""
    ones, at = torch.ones(1, 2, len(positions), 4), torch.tensor(positions)
    q, k = pe.rotate(ones, ones, Grid.at(at, at, causal=causal))
    assert torch.equal(k, ones)
    return q[0, :, :, 0].detach()


def test_by_hand():
    at = [0, 15, 255]
    learned = factors(make(log_scale="ssmax"), at)
    torch.testing.assert_close(learned, torch.tensor([0.0, 1.0, 2.0]).expand(2, 3))  # ln n / ln 16
    torch.testing.assert_close(factors(make(log_scale="clipped"), at)[0], torch.tensor([1.0, 1.0, 2.0]))
    inkling = factors(make(log_scale="inkling", log_floor=64, log_rate=0.5), at)[0]
    torch.testing.assert_close(inkling, torch.tensor([1.0, 1.0, 1 + 0.5 * math.log(4)]))
    assert [n for n, _ in make(log_scale="ssmax").named_parameters()] == ["s"]
    assert not list(make(log_scale="clipped").parameters())


def test_as_llama_4():
    at = [0, 8190, 8191, 16382, 100_000]
    expected = [math.log(math.floor((p + 1) / 8192) + 1) * 0.1 + 1 for p in at]
    torch.testing.assert_close(factors(make(log_scale="llama4"), at)[1], torch.tensor(expected))


def test_as_ministral():
    modeling = pytest.importorskip("transformers.models.ministral3.modeling_ministral3")
    at = [0, 15, 16, 17, 1000]
    expected = modeling.get_llama_4_attn_scale(torch.tensor([at]), 0.3, 16)[0, 0, :, 0]
    torch.testing.assert_close(factors(make(log_scale="ministral", log_rate=0.3), at)[0], expected)


def test_without_mask_all_queries_see_as_many_keys():
    both = factors(make(log_scale="clipped"), [0, 100, 255], causal=False)
    torch.testing.assert_close(both, torch.full((2, 3), 2.0))


def test_it_costs_the_operator_nothing():
    q = torch.randn(1, 2, 70, 4)
    for name in ("kerple", "dape-kerple", "cope"):
        plain, scaled = (dape.attention(q, q, q, make(n), explain=True)[1] for n in (name, f"logn-{name}"))
        assert plain == scaled


def test_f_reads_scaled_scores_and_the_bias_stays():
    pe, base = make("logn-dape-kerple", log_scale="clipped"), None
    base = pe.base
    q, k = torch.randn(2, 1, 2, 300, 4)
    seen, plain = dape.intermediates(q, k, pe, rows=[255]), dape.intermediates(q, k, base, rows=[255])
    torch.testing.assert_close(seen.scores, 2 * plain.scores)
    torch.testing.assert_close(seen.bias, plain.bias)
    torch.testing.assert_close(
        seen.f, base.mixed(2 * plain.scores, Grid.at(torch.tensor([255]), torch.arange(300), causal=True))
    )


@torch.no_grad()
def test_in_a_model_padding_and_caches_leave_positions_alone():
    torch.manual_seed(0)
    model = dape.DecoderLM(
        dape.DecoderConfig(encoding="logn-kerple", layers=2, width=16, heads=2, vocabulary=11, train_length=4)
    ).eval()
    tokens = torch.randint(11, (1, 40))
    whole, cache = model(tokens), Cache(2)
    parts = [model(part, cache=cache) for part in tokens.split([30, 1, 9], dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-5)
    padding = torch.tensor([[True] * 7 + [False] * 40])
    padded = model(torch.cat([tokens[:, :7], tokens], 1), places=Places.beside(padding))
    torch.testing.assert_close(padded[:, 7:], whole, rtol=1e-4, atol=1e-5)


def test_bad_options():
    with pytest.raises(ValueError, match="log_scale='log' is not possible; choose one of 'ssmax'"):
        make(log_scale="log")
    with pytest.raises(ValueError, match="log_floor must be above 1"):
        make(log_scale="clipped", log_floor=1)
    with pytest.raises(TypeError, match=r"'logn-nope' has no option 'log_flor'. Did you mean 'log_floor'"):
        make(log_flor=1)
