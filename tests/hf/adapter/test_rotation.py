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


# In place of the rotation --------------------------------------------------------------------------------------------


def published_lag(name, i, j, *, window, group):
    """The papers' own rule, for one pair."""
    if i - j < window:
        return i - j
    return window if name == "rerope" else i // group - j // group + window - window // group


def rotated(x, angle_of_one, share):
    """One vector by a lag, its pairs as complex numbers; the channels behind ``share`` stand still."""
    width = int(len(x) * share)
    half = width // 2
    w = 10000.0 ** (-torch.arange(half, dtype=torch.float64) * 2 / width)
    z = torch.complex(x[:half].double(), x[half:width].double()) * torch.polar(torch.ones_like(w), angle_of_one * w)
    return torch.cat([z.real, z.imag, x[width:].double()])


@pytest.mark.parametrize("name", ["rerope", "self-extend"])
@pytest.mark.parametrize(("kind", "share"), [("llama", 1.0), ("qwen2", 1.0), ("gpt_neox", 0.25)])
def test_two_rotations_by_the_published_formula(name, kind, share, monkeypatch):
    """Every pair by itself, from the queries and keys that a layer of the library hands over without its rotation."""
    from dape.hf import attention as ours

    seen = []
    operator = ours.attention

    def watched(q, k, v, pe, **more):
        seen.append((q, k, v, operator(q, k, v, pe, **more)))
        return seen[-1][3]

    monkeypatch.setattr(ours, "attention", watched)
    more = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}}
    options = {"window": 3} | ({"group": 2} if name == "self-extend" else {})
    model = extend(make(kind, **(more if share < 1 else {})), name, train_length=8, **options)
    model(torch.randint(0, 101, (1, 11), generator=torch.Generator().manual_seed(1)))
    q, k, v, found = seen[0]
    groups = q.shape[1] // k.shape[1]
    for head in range(q.shape[1]):
        for i in range(11):
            keys = [k[0, head // groups, j] for j in range(i + 1)]
            lags = [published_lag(name, i, j, window=3, group=2) for j in range(i + 1)]
            scores = [rotated(q[0, head, i], lag, share) @ key.double() for lag, key in zip(lags, keys, strict=True)]
            weights = (torch.stack(scores) / q.shape[-1] ** 0.5).softmax(0)
            expected = weights @ v[0, head // groups, : i + 1].double()
            torch.testing.assert_close(found[0, head, i].double(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["rerope", "self-extend"])
@pytest.mark.parametrize("kind", [*ROTATING, "phi3", "olmo2", "starcoder2", "falcon"])
def test_two_rotations_are_the_model_on_short_texts(kind, name, tokens, tmp_path):
    """The base and the share of channels are the model's own; generating with a cache, saving and removing too."""
    more = {"sliding_window": None} if kind in ("phi3", "starcoder2") else {}
    plain, short = make(kind, **more), tokens[:, :11]
    model = extend(make(kind, **more), name, train_length=24)
    torch.testing.assert_close(model(short).logits, plain(short).logits, atol=1e-5, rtol=1e-5)
    found = model(tokens).logits
    assert (found - plain(tokens).logits).abs().max() > 1e-5
    save_adapter(model, tmp_path / "adapter")
    assert torch.equal(load_adapter(make(kind, **more), tmp_path / "adapter")(tokens).logits, found)
    torch.testing.assert_close(remove(model)(tokens).logits, plain(tokens).logits, atol=1e-5, rtol=1e-5)


def test_generating_with_a_cache(tokens):
    """A fixed group, as another one would have changed what was read before."""
    from tests.hf.adapter.models import generate

    for name, options in (("rerope", {}), ("self-extend", {"group": 3})):
        model = extend(make("llama"), name, train_length=16, **options)
        cached, whole = (generate(model, tokens[:, :13], use_cache=use) for use in (True, False))
        assert torch.equal(cached, whole)


@pytest.mark.parametrize(
    ("kind", "more", "says"),
    [
        ("gpt2", {}, "gpt2 has none"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "the same in every layer; smollm3 has another one"),
        ("gemma3_text", {}, "gemma3_text has another one"),
        ("gemma2", {}, "gemma2 bounds its scores"),
    ],
)
def test_two_rotations_need_a_plain_one(kind, more, says):
    with pytest.raises(ValueError, match=says):
        extend(make(kind, **more), "rerope")
    with pytest.raises(ValueError, match="rope='yarn' means nothing"):
        extend(make("llama"), "rerope", rope="yarn", factor=4.0)
