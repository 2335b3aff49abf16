"""Features through whole models: caches, padding, packed documents, shared windows, and the library's beam search."""

import pytest
import torch

import dape
from dape.models.cache import Cache
from dape.models.decoder import DecoderLM
from dape.models.places import Places

NAMES = ["fox", "dape-fox", "randomized-fox", "inkling"]


def make(name: str, **sizes) -> DecoderLM:
    torch.manual_seed(0)
    model = DecoderLM(dape.DecoderConfig(encoding=name, layers=2, width=16, heads=2, vocabulary=11, **sizes)).eval()
    with torch.no_grad():
        for pe in model.encodings:
            for p in pe.parameters():
                p.normal_()
    return model


def text(length: int, batch: int = 2) -> torch.Tensor:
    return torch.randint(11, (batch, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_decoding_equals_the_whole(name):
    model, tokens = make(name), text(90)
    encodings, cache = model.drawn_encodings(90, torch.Generator().manual_seed(1)), Cache(2)
    whole = model(tokens, encodings=encodings)
    parts = [model(part, cache=cache, encodings=encodings) for part in tokens.split([70, 1, 1, 5, 13], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_padding_anywhere_changes_nothing(name):
    """On the left, and in the middle of a text."""
    model, tokens = make(name), text(20, batch=1)
    encodings = model.drawn_encodings(30, torch.Generator().manual_seed(1))
    alone = model(tokens, encodings=encodings)
    text_at = torch.tensor([[False] * 4 + [True] * 9 + [False] * 6 + [True] * 11])
    padded = torch.full((1, 30), 5).masked_scatter(text_at, tokens)
    out = model(padded, places=Places.beside(~text_at), encodings=encodings)
    torch.testing.assert_close(out[:, text_at[0]], alone, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_packed_documents_do_not_see_each_other():
    model, tokens = make("dape-fox"), text(21, batch=1)
    positions = torch.cat([torch.arange(9), torch.arange(12)]).unsqueeze(0)
    apart = torch.cat([model(part) for part in tokens.split([9, 12], dim=1)], dim=1)
    torch.testing.assert_close(model(tokens, places=Places.packed(positions)), apart, rtol=1e-4, atol=1e-4)


def test_checkpointed_blocks_have_the_same_gradients():
    found = []
    for recompute in (False, True):
        model = make("dape-fox", checkpoint_activations=recompute).train()
        model(text(33)).square().mean().backward()
        found.append([p.grad for p in model.parameters()])
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)
    assert all(
        p.grad.abs().max() > 0 for pe in model.encodings for n, p in pe.named_parameters() if "second.bias" not in n
    )


def test_the_library_moves_features_with_its_keys():
    """Beam search reorders the cache; a static one has room that is still empty; half precision must not round sums."""
    pytest.importorskip("transformers")
    from transformers import StaticCache

    from dape.hf import DapeConfig, DapeForCausalLM

    torch.manual_seed(0)
    config = DapeConfig(encoding="dape-fox", layers=2, width=16, heads=2, vocabulary=11, train_length=8)
    model = DapeForCausalLM(config).eval()
    prompt = text(12)
    how = {"max_new_tokens": 9, "num_beams": 3, "do_sample": False, "pad_token_id": 0}
    how["attention_mask"] = torch.ones_like(prompt)
    cached, slow = (model.generate(prompt, use_cache=use, **how) for use in (True, False))
    assert torch.equal(cached, slow)
    static = StaticCache(config=config, max_cache_len=32)
    with torch.no_grad():
        model(prompt[:, :9], past_key_values=static)
        last = model(prompt[:, 9:], past_key_values=static).logits
        torch.testing.assert_close(last, model(prompt).logits[:, 9:], rtol=1e-4, atol=1e-4)
        half = model.bfloat16()
        cache = half(prompt[:, :11]).past_key_values
        step = half(prompt[:, 11:], past_key_values=cache).logits
    torch.testing.assert_close(step.float(), half(prompt).logits[:, 11:].float(), rtol=0.05, atol=0.05)


def test_adapters_refuse():
    pytest.importorskip("transformers")
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "intermediate_size": 16,
        "vocab_size": 9,
    }
    model = LlamaForCausalLM(LlamaConfig(**sizes))
    for name in ("fox", "dape-fox"):
        with pytest.raises(ValueError, match=f"{name}: reads what enters each attention layer"):
            dape.hf.extend(model, name)
    dape.hf.extend(model, "fox", gate="bias")
