"""The five guarantees of an adapter, for every family of models: it is the model at first, a cache and padding change
nothing, it is saved whole, and nothing else is trained. Windows of sliding layers stay."""

import pytest
import torch

pytest.importorskip("transformers")

from tests.hf.adapter.models import generate, make, shake

from dape.hf import adapter_parameters, extend, load_adapter, remove, save_adapter
from dape.hf.families import FAMILIES
from dape.hf.hosts import attention_layers

FAST = ("llama", "bloom")
KINDS = [pytest.param(kind, marks=() if kind in FAST else pytest.mark.slow) for kind in FAMILIES]
VARIANTS = [
    *((kind, {}) for kind in FAMILIES),
    ("mistral", {"sliding_window": 8}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    ("falcon", {"multi_query": False}),
    ("gemma2", {"attn_logit_softcapping": 2.0}),
    ("mpt", {"attn_config": {"clip_qkv": 0.5}}),
]
CASES = [
    pytest.param(kind, more, marks=() if (kind, more) in [(f, {}) for f in FAST] else pytest.mark.slow)
    for kind, more in VARIANTS
]
TOLERANCE = {"rtol": 0, "atol": 2e-5}


def methods(kind: str) -> list[str]:
    return ["dape-alibi"] if FAMILIES[kind].positions == "alibi" else ["dape-kerple", "dape-fire"]


def logits(model, tokens, **more):
    with torch.no_grad():
        return model(tokens, **more).logits


def adapted(kind: str, method: str, more: dict):
    model = extend(make(kind, **more), method, train_length=16)
    shake(model)
    return model


@pytest.mark.parametrize(("kind", "more"), CASES)
def test_at_first_it_is_the_model(kind, more, tokens):
    for method in methods(kind):
        model = make(kind, **more)
        before = logits(model, tokens)
        extend(model, method, train_length=16)
        torch.testing.assert_close(logits(model, tokens), before, **TOLERANCE)
        shake(model)
        assert not torch.allclose(logits(model, tokens), before, atol=1e-3), "then it is not"
        assert torch.equal(logits(remove(model), tokens), before)


@pytest.mark.parametrize(("kind", "more"), CASES)
def test_a_cache_changes_nothing(kind, more, tokens):
    for method in methods(kind):
        model = adapted(kind, method, more)
        expected = logits(model, tokens, use_cache=False)
        with torch.no_grad():
            cache, parts = None, []
            for part in tokens.split([20, 1, 5, 1, 10], dim=1):
                found = model(part, past_key_values=cache, use_cache=True)
                cache = found.past_key_values
                parts.append(found.logits)
        torch.testing.assert_close(torch.cat(parts, dim=1), expected, **TOLERANCE)
        texts = [generate(model, tokens, use_cache=cached) for cached in (True, False)]
        assert torch.equal(*texts)
        if kind not in ("mpt",):
            assert torch.equal(generate(model, tokens, cache_implementation="static"), texts[0])


@pytest.mark.parametrize(("kind", "more"), CASES)
def test_padding_changes_nothing(kind, more, tokens):
    for method in methods(kind):
        model = adapted(kind, method, more)
        short = tokens[1:, :23]
        batch = torch.cat([tokens[:1], torch.nn.functional.pad(short, (14, 0))])
        mask = torch.ones_like(batch)
        mask[1, :14] = 0
        found = logits(model, batch, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0))
        torch.testing.assert_close(found[1, 14:], logits(model, short)[0], **TOLERANCE)
        torch.testing.assert_close(found[0], logits(model, tokens[:1])[0], **TOLERANCE)
        alone = [generate(model, tokens[:1]), generate(model, short)]
        both = generate(model, batch, attention_mask=mask)
        assert torch.equal(both[0, -10:], alone[0][0, -10:]) and torch.equal(both[1, -10:], alone[1][0, -10:])


@pytest.mark.parametrize(("kind", "more"), CASES)
def test_it_is_saved_whole(kind, more, tokens, tmp_path):
    model = adapted(kind, methods(kind)[0], more)
    save_adapter(model, tmp_path / "adapter")
    loaded = load_adapter(make(kind, **more), tmp_path / "adapter")
    assert torch.equal(logits(loaded, tokens), logits(model, tokens))


@pytest.mark.parametrize(("kind", "more"), CASES)
def test_nothing_else_is_trained(kind, more, tokens):
    for method in methods(kind):
        model = adapted(kind, method, more).train()
        own = {id(p) for p in adapter_parameters(model)}
        assert {id(p) for p in model.parameters() if p.requires_grad} == own
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in adapter_parameters(model))
        assert any(p.grad.abs().max() > 0 for p in adapter_parameters(model))
        assert all(p.grad is None for p in model.parameters() if id(p) not in own)


@pytest.mark.parametrize("method", ["dape-kerple", "dape-fire", "kerple"])
def test_a_sliding_layer_keeps_its_window(method, tokens):
    """What lies outside of all windows of two layers cannot be seen; a layer without windows sees it."""
    for window, same in ((8, True), (None, False)):
        model = extend(make("mistral", sliding_window=window), method, train_length=16)
        shake(model)
        other = tokens.clone()
        other[:, :20] = (other[:, :20] + 1) % 101
        assert torch.allclose(logits(model, tokens)[:, 36], logits(model, other)[:, 36], atol=1e-6) is same


def test_windows_are_computed_in_blocks(tokens, monkeypatch):
    model = adapted("mistral", "dape-fire", {"sliding_window": 8})
    expected = logits(model, tokens)
    monkeypatch.setattr("dape.hf.windows.BLOCK", 5)
    torch.testing.assert_close(logits(model, tokens), expected, **TOLERANCE)


def test_the_table_finds_every_layer():
    for kind in FAST:
        assert [layer.layer_idx for layer in attention_layers(make(kind))] == [0, 1]


@pytest.mark.parametrize("method", ["dape-kerple", "dape-fire"])
@pytest.mark.parametrize("more", [{}, {"sliding_window": 4}])
def test_packed_documents_are_the_documents_alone(method, more, tokens):
    model = extend(make("mistral", **more), method, train_length=16)
    shake(model)
    lengths = ([5, 1, 20, 11], [30, 7])
    positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths])
    found = logits(model, tokens, position_ids=positions, use_cache=False)
    for row, parts in enumerate(lengths):
        alone = [logits(model, part[None], use_cache=False) for part in tokens[row].split(parts)]
        torch.testing.assert_close(found[row], torch.cat(alone, dim=1)[0], **TOLERANCE)


def test_a_mask_function_of_its_own_is_refused(tokens):
    from transformers.masking_utils import create_causal_mask

    model = extend(make("llama"))
    config, states = model.config, torch.zeros(2, 37, 32)
    given = {"config": config, "inputs_embeds": states, "attention_mask": None, "past_key_values": None}
    with pytest.raises(ValueError, match="a mask function of its own"):
        create_causal_mask(**given, or_mask_function=lambda b, h, q, k: (q < 9) & (k < 9))
    assert create_causal_mask(**given).shape == (0, 37)
