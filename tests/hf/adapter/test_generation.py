"""Texts with an adapter: the same with and without a cache, and in a padded batch as alone."""

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from tests.hf.adapter.models import CORE, ROTATING, generate, make, shake

from dape.hf import extend


@pytest.mark.parametrize("method", ["dape-kerple", "dape-fire"])
@pytest.mark.parametrize("kind", CORE)
def test_generation_with_and_without_cache(kind, method, tokens):
    model = extend(make(kind), method)
    shake(model)
    prompt = tokens[:1, :9]
    text = generate(model, prompt)
    assert torch.equal(text, generate(model, prompt, use_cache=False))
    assert torch.equal(text, generate(model, prompt, cache_implementation="static"))
    assert text.shape[1] == 19


@pytest.mark.parametrize("kind", ROTATING)
def test_generation_with_and_without_cache_under_yarn(kind, tokens):
    """Beyond the training length, where the slowed rotation differs from the model's own."""
    model = extend(make(kind), "dape-kerple", rope="yarn", factor=4, train_length=8)
    shake(model)
    text = generate(model, tokens[:1, :9])
    assert torch.equal(text, generate(model, tokens[:1, :9], use_cache=False))
    whole, cached = model(text).logits, model(text[:, :-1], use_cache=True)
    last = model(text[:, -1:], past_key_values=cached.past_key_values).logits
    torch.testing.assert_close(last[:, 0], whole[:, -1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", CORE)
def test_padding_on_the_left_in_logits(kind, tokens):
    model = extend(make(kind), "dape-kerple")
    shake(model)
    batch = torch.stack([torch.cat([torch.zeros(5, dtype=torch.long), tokens[0, :9]]), tokens[1, :14]])
    mask = torch.ones_like(batch)
    mask[0, :5] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)  # as generate makes them; GPT-2 has a table of them
    together = model(batch, attention_mask=mask, position_ids=positions).logits
    torch.testing.assert_close(together[0, 5:], model(tokens[:1, :9]).logits[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(together[1], model(tokens[1:, :14]).logits[0], atol=1e-5, rtol=1e-5)
    unmasked = model(batch, position_ids=positions).logits
    assert (unmasked[0, 5:] - together[0, 5:]).abs().max() > 1e-3


@pytest.mark.parametrize("method", ["dape-kerple", "dape-fire"])
@pytest.mark.parametrize("kind", CORE)
def test_padding_on_the_left(kind, method, tokens):
    model = extend(make(kind), method)
    shake(model)
    batch = torch.stack([torch.cat([torch.zeros(5, dtype=torch.long), tokens[0, :9]]), tokens[1, :14]])
    mask = torch.ones_like(batch)
    mask[0, :5] = 0
    together = generate(model, batch, attention_mask=mask)
    assert torch.equal(together[0, 5:], generate(model, tokens[:1, :9])[0])
    assert torch.equal(together[1], generate(model, tokens[1:, :14])[0])


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_beams_sampling_and_a_static_cache_in_a_padded_batch(kind, tokens):
    model = extend(make(kind), "dape-kerple")
    shake(model)
    batch = torch.stack([torch.cat([torch.zeros(5, dtype=torch.long), tokens[0, :9]]), tokens[1, :14]])
    mask = torch.ones_like(batch)
    mask[0, :5] = 0
    for way in ({"num_beams": 3, "do_sample": False}, {"do_sample": True, "top_k": 20}, {"do_sample": False}):
        texts = []
        for more in ({}, {"use_cache": False}, {"cache_implementation": "static"}):
            torch.manual_seed(0)
            texts.append(model.generate(batch, attention_mask=mask, max_new_tokens=6, pad_token_id=0, **way, **more))
        assert torch.equal(texts[0], texts[1]) and torch.equal(texts[0], texts[2])


def test_a_pipeline(tokens):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({str(n): n for n in range(101)}, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", padding_side="left")
    model = extend(make("llama"), "dape-kerple")
    shake(model)
    write = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer, batch_size=2)
    settings = {"max_new_tokens": 4, "do_sample": False}
    alone = write("1 2 3", **settings)[0]["generated_text"]
    together = write(["1 2 3", "4 5 6 7 8"], **settings)[0][0]["generated_text"]
    assert together == alone and alone.startswith("1 2 3")
