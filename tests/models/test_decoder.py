"""The language model: parameter counts of the paper's sizes, initialisation, caching, sharing of encodings."""

import math

import pytest
import torch
from tests.growing import stretch_grows
from tests.thinned import thinned

from dape.models.cache import Cache
from dape.models.config import DecoderConfig
from dape.models.decoder import DecoderLM
from dape.positional.catalogue import encodings

SIZES = {
    "125m": (12, 768, 12, 162.3e6),
    "350m": (24, 1024, 16, 405.3e6),
    "2.7b": (32, 2560, 32, 2.775e9),
    "6.7b": (32, 4096, 32, 6.856e9),
}
NAMES = [n for n in encodings() if not stretch_grows(n)]
NAMES += ["randomized-rope", "randomized-sinusoidal", "randomized-dape-kerple"]


def tiny(encoding: str = "dape-kerple", **options) -> DecoderLM:
    torch.manual_seed(0)
    config = DecoderConfig(layers=2, width=32, heads=4, vocabulary=11, encoding=encoding, train_length=16, **options)
    return DecoderLM(config).double().eval()


@pytest.mark.parametrize("size", SIZES)
def test_parameter_counts_are_the_papers(size):
    layers, width, heads, expected = SIZES[size]
    with torch.device("meta"):
        model = DecoderLM(
            DecoderConfig(layers=layers, width=width, heads=heads, vocabulary=50304, encoding="nope", train_length=512)
        )
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(expected, rel=5e-4)


def test_dape_adds_what_the_paper_says():
    """1196 numbers per layer of 12 heads with 32 hidden units, and r1, r2 of Kerple."""

    def count(encoding: str) -> int:
        with torch.device("meta"):
            model = DecoderLM(DecoderConfig(layers=12, width=768, heads=12, encoding=encoding, train_length=512))
        return sum(p.numel() for p in model.parameters())

    assert count("dape-kerple") - count("kerple") == 12 * 1196
    assert count("kerple") - count("nope") == 12 * 24


def test_initial_spread_of_the_weights():
    torch.manual_seed(0)
    model = DecoderLM(DecoderConfig(layers=2, width=256, heads=4, vocabulary=500))
    block = model.blocks[0]
    for layer in (model.embedding, model.head, block.attention.qkv, block.feed_forward.up):
        assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / (5 * 256)), rel=0.03)
    for layer in (block.attention.out, block.feed_forward.down):
        assert layer.weight.std().item() == pytest.approx(2 / (2 * math.sqrt(256)), rel=0.03)
    assert not block.attention.qkv.bias.any() and model.head.bias is None


@pytest.mark.parametrize("name", NAMES)
def test_decoding_with_a_cache_equals_the_whole_pass(name):
    model = tiny(name)
    tokens = torch.randint(11, (2, 23))
    encodings_ = model.drawn_encodings(23, torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = model(tokens, encodings=encodings_)
        cache = Cache(2)
        parts = [model(part, cache=cache, encodings=encodings_) for part in tokens.split([9, 1, 3, 1, 9], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


def test_a_fixed_stretch_makes_yarn_cacheable():
    model = tiny("yarn", encoding_options={"scale": 4.0})
    tokens = torch.randint(11, (2, 23))
    cache = Cache(2)
    with torch.no_grad():
        parts = [model(part, cache=cache) for part in tokens.split([20, 1, 2], dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens))


@pytest.mark.parametrize(
    ("name", "instances"), [("t5", 1), ("learned", 1), ("sinusoidal", 1), ("kerple", 2), ("dape-t5", 2)]
)
def test_which_encodings_are_shared_by_the_layers(name, instances):
    assert len(tiny(name).encodings) == instances
    assert len(tiny(name, share_encoding=instances == 2).encodings) == 3 - instances


def test_checkpointing_activations_changes_nothing():
    plain, lean = tiny(), tiny(checkpoint_activations=True)
    tokens = torch.randint(11, (2, 12))
    for model in (plain, lean):
        model.train()(tokens).square().sum().backward()
    for a, b in zip(plain.parameters(), lean.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_randomised_positions_are_drawn_anew_and_shared_by_the_layers():
    model = tiny("randomized-rope")
    tokens = torch.randint(11, (1, 12))
    with torch.no_grad():
        assert not torch.equal(model(tokens), model(tokens))
    first, second = model.drawn_encodings(12)
    assert first.fixed_draw is second.fixed_draw


def test_a_width_that_heads_do_not_divide_is_refused():
    with pytest.raises(ValueError, match="cannot be divided into 3 heads"):
        DecoderLM(DecoderConfig(width=32, heads=3))


@pytest.mark.parametrize(("last", "name"), thinned(4, [1, 5, 23, 40], NAMES))
def test_the_last_hidden_states_alone_equal_those_of_the_whole_pass(name, last):
    model = tiny(name)
    tokens = torch.randint(11, (2, 23))
    encodings_ = model.drawn_encodings(23, torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = model.hidden(tokens, encodings=encodings_)
        torch.testing.assert_close(model.hidden(tokens, encodings=encodings_, last=last), whole[:, -last:])


def test_models_of_one_seed_differ_only_in_their_encodings():
    one, other = tiny("dape-fire").state_dict(), tiny("rope").state_dict()
    assert set(other) < set(one)
    for name, weight in other.items():
        torch.testing.assert_close(one[name], weight, rtol=0, atol=0)
