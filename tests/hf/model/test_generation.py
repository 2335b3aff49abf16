"""Texts through the transformers library: the same as ours, with every cache, in batches and pipelines."""

import pytest
import torch

pytest.importorskip("transformers")

from tests.hf.model.models import NAMES, RANDOM, continued, decoder, ours, tiny, tokens
from transformers import DynamicCache, PreTrainedTokenizerFast, StaticCache, pipeline

from dape.models.generate import Sampling


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("name", NAMES)
def test_parts_with_a_cache_are_the_whole(name, kind):
    model, text = tiny(name).double(), tokens(2, 23)
    cache = DynamicCache(config=model.config) if kind == "dynamic" else StaticCache(model.config, max_cache_len=30)
    with torch.no_grad():
        parts = [model(part, past_key_values=cache).logits for part in text.split([9, 1, 3, 1, 9], dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), decoder(model)(text))
    assert int(cache.get_seq_length()) == 23


def test_a_cache_by_default_only_where_it_is_of_use():
    model = tiny()
    assert isinstance(model(tokens()).past_key_values, DynamicCache)
    assert model(tokens(), use_cache=False).past_key_values is None
    assert model.train()(tokens()).past_key_values is None
    with pytest.raises(TypeError, match="must be a Cache of transformers, got tuple"):
        model(tokens(), past_key_values=((torch.zeros(1), torch.zeros(1)),))


@pytest.mark.parametrize("name", NAMES)
def test_greedy_texts_are_ours(name):
    model, prompt = tiny(name), tokens()
    expected = ours(model, prompt)
    assert len(expected.unique()) > 1
    for way in ({}, {"use_cache": False}, {"cache_implementation": "static"}, {"prompt_lookup_num_tokens": 3}):
        rows = prompt if "prompt_lookup_num_tokens" not in way else prompt[:1]  # for one text at a time only
        assert torch.equal(continued(model, rows, **way), expected[: len(rows)]), way


@pytest.mark.parametrize("name", NAMES)
def test_left_padded_prompts_are_continued_as_alone(name):
    model, lengths = tiny(name), (9, 3, 6)
    prompts = [tokens(1, n, seed=n) for n in lengths]
    batch = torch.cat([torch.nn.functional.pad(p, (9 - p.shape[1], 0)) for p in prompts])
    mask = torch.cat([torch.nn.functional.pad(torch.ones_like(p), (9 - p.shape[1], 0)) for p in prompts])
    expected = torch.cat([ours(model, p) for p in prompts])
    for way in ({}, {"use_cache": False}, {"cache_implementation": "static"}):
        assert torch.equal(continued(model, batch, attention_mask=mask, **way), expected), way


@pytest.mark.parametrize("name", ["dape-kerple", "dape-fire", "rope"])
def test_sampling_and_beams_do_not_depend_on_the_cache(name):
    model, prompt = tiny(name), tokens()
    for way in ({"do_sample": True, "top_k": 5, "temperature": 1.3}, {"num_beams": 3}):
        found = []
        for cache in ({}, {"use_cache": False}, {"cache_implementation": "static"}):
            torch.manual_seed(0)
            found.append(continued(model, prompt, **way, **cache))
        assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_beams_are_the_likeliest_texts():
    """As many beams as there are texts find the best one."""
    model, prompt = tiny(vocabulary=5), tokens(1) % 5
    best = continued(model, prompt, 2, num_beams=5, length_penalty=0.0)
    texts = torch.cartesian_prod(torch.arange(5), torch.arange(5))
    whole = torch.cat([prompt.expand(25, -1), texts], dim=1)
    with torch.no_grad():
        likely = model(whole).logits.log_softmax(-1)[:, -3:-1].gather(-1, texts.unsqueeze(-1)).sum((1, 2))
    assert torch.equal(best[0], texts[likely.argmax()])


def test_sampling_is_ours():
    """With the same seed: both draw with torch.multinomial."""
    model, prompt = tiny(), tokens(1)
    torch.manual_seed(4)
    found = continued(model, prompt, do_sample=True, temperature=0.9, top_k=0)
    generator = torch.Generator().manual_seed(4)
    assert torch.equal(found, ours(model, prompt, sampling=Sampling(temperature=0.9), generator=generator))


def test_embeddings_as_a_prompt():
    model, prompt = tiny(), tokens()
    found = model.generate(
        inputs_embeds=model.get_input_embeddings()(prompt),
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=6,
        do_sample=False,
        pad_token_id=0,
    )
    assert torch.equal(found, ours(model, prompt, 6))


def test_randomised_positions_are_fixed_around_a_text():
    model, prompt = tiny(RANDOM), tokens()
    with model.drawn(19, torch.Generator().manual_seed(2)):
        found = continued(model, prompt)
        assert torch.equal(continued(model, prompt, use_cache=False), found)
    assert torch.equal(ours(model, prompt, generator=torch.Generator().manual_seed(2)), found)
    with torch.no_grad():
        assert not torch.equal(model(tokens(2, 16)).logits, model(tokens(2, 16)).logits), "drawn anew for every call"


@pytest.mark.parametrize("way", [{}, {"use_cache": False}])
def test_randomised_positions_without_a_draw_are_refused(way):
    model = tiny(RANDOM)
    with pytest.raises(ValueError, match=r"with model\.drawn"):
        continued(model, tokens(), **way)
    with pytest.raises(ValueError, match=r"with model\.drawn"):
        model(tokens(), use_cache=True)


def test_a_pipeline_without_network(folder):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: i for i, word in enumerate(["[PAD]", *"abcdefghijklmnopqr"])}
    library = Tokenizer(models.WordLevel(words, unk_token="[PAD]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=library, pad_token="[PAD]", padding_side="left")
    model = tiny(pad_token_id=0)
    path = folder(model)
    tokenizer.save_pretrained(path)
    write = pipeline("text-generation", model=str(path))
    prompts = ["a b c d e", "f g"]
    options = {"max_new_tokens": 5, "do_sample": False, "return_full_text": False, "max_length": None}
    alone = [write(prompt, **options)[0]["generated_text"] for prompt in prompts]
    together = [found[0]["generated_text"] for found in write(prompts, batch_size=2, **options)]
    assert alone == together
    expected = ours(model, tokenizer(prompts[0], return_tensors="pt")["input_ids"], 5)
    assert alone[0].split() == tokenizer.decode(expected[0]).split()
