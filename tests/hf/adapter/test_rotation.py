"""The model's own rotation under an adapter: removed, slowed down by YaRN, or refused."""

import pytest
import torch

pytest.importorskip("transformers")

from tests.hf.adapter.models import ROTATING, make, shake

from dape.hf import extend, load_adapter, remove, save_adapter


def test_without_rotation(tokens):
    """As if every angle were 0: then the order of earlier tokens does not matter to one layer."""
    model = extend(make("llama", **{}), "dape-nope", rope="remove")
    swapped = tokens.clone()
    swapped[:, [3, 11]] = swapped[:, [11, 3]]
    model.model.layers = model.model.layers[:1]
    model.config.num_hidden_layers = 1
    last = [model(x).logits[:, -1] for x in (tokens, swapped)]
    torch.testing.assert_close(*last, atol=1e-5, rtol=1e-5)
    kept = extend(make("llama"), "dape-nope")
    assert (kept(tokens).logits[:, -1] - kept(swapped).logits[:, -1]).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ROTATING)
def test_yarn_under_the_adapter(kind, tokens, tmp_path):
    """At first what the library's own YaRN gives; saved, loaded and removed with the adapter."""
    plain = make(kind)
    before = plain(tokens).logits
    scaled = make(kind)
    scaled.config.rope_parameters = {
        **scaled.config.rope_parameters, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8,
    }  # fmt: skip
    (holder,) = [m for m in scaled.modules() if hasattr(m, "rotary_emb")]
    holder.rotary_emb = type(holder.rotary_emb)(scaled.config)
    expected = scaled(tokens).logits
    extend(plain, "dape-kerple", rope="yarn", factor=4, train_length=8)
    torch.testing.assert_close(plain(tokens).logits, expected, atol=1e-5, rtol=1e-5)
    assert (expected - before).abs().max() > 1e-4
    shake(plain)
    found = plain(tokens).logits
    save_adapter(plain, tmp_path / "adapter")
    again = load_adapter(make(kind), tmp_path / "adapter")
    assert torch.equal(again(tokens).logits, found)
    torch.testing.assert_close(remove(plain)(tokens).logits, before, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        ("llama", {"rope": "yarn"}, "a factor above 1"),
        ("llama", {"factor": 4.0}, "a factor above 1"),
        ("gpt2", {"rope": "yarn", "factor": 4.0}, "gpt2 has no rotation to slow down"),
        ("llama", {"rope": "turn"}, "'keep', 'remove', 'yarn'"),
        ("llama", {"rope": "yarn", "factor": "4"}, "factor is a number.*got '4'"),
        ("llama", {"rope": "yarn", "factor": None}, "factor is a number.*got None"),
        ("llama", {"rope": "yarn", "factor": float("inf")}, "factor is a number.*got inf"),
    ],
)
def test_rotations_that_cannot_be(kind, settings, words):
    with pytest.raises((ValueError, TypeError), match=words):
        extend(make(kind), "dape-kerple", train_length=8, **settings)


def test_a_rotation_is_scaled_once():
    model = make("llama")
    model.config.rope_parameters["rope_type"] = "linear"
    with pytest.raises(ValueError, match=r"scaled already .rope_type 'linear'.; use rope='keep'"):
        extend(model, "dape-kerple", rope="yarn", factor=2, train_length=8)


def test_gpt2_has_no_rotation():
    with pytest.raises(ValueError, match="gpt2 has no rotation to remove"):
        extend(make("gpt2"), rope="remove")
