"""What cannot be meant: options, models and calls that are refused, and a model that stays as it was."""

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from tests.hf.adapter.models import generate, make

from dape.hf import extend, remove, save_adapter
from dape.hf.hosts import SUPPORTED, attention_layers


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: extend(torch.nn.Linear(2, 2)), "Linear: adapters exist for gpt2, gpt_neox, llama"),
        (lambda m: extend(m, "rope"), "rope: turns queries and keys, but the model has its own rotation"),
        (lambda m: extend(m, "dape-rope"), "use rope='yarn', factor=.*possible: t5, alibi.*dape-X with X one of nope"),
        (lambda m: extend(m, "dape-pi"), "dape-pi: turns queries and keys"),
        (lambda m: extend(m, "dape-yarn", zero_init=False), "dape-yarn: turns queries and keys"),
        (lambda m: extend(m, "dape-v2-rope", zero_init=False), "dape-v2-rope: turns queries and keys"),
        (lambda m: extend(m, "nope"), "nope: an adapter is an additive bias or DAPE"),
        (lambda m: extend(m, None), "a string such as 'dape-kerple'; got None"),
        (lambda m: extend(m, zero_init_out=False), "zero_init_out=False lets f change.*pass zero_init=False"),
        (lambda m: extend(m, "randomized-alibi"), "an adapter is an additive bias or DAPE"),
        (lambda m: extend(m, "dape-kerpel"), "Did you mean"),
        (lambda m: extend(m, rope="twist"), "choose one of 'keep', 'remove'"),
        (lambda m: extend(m, variant="concat_residual"), "adds B from the start"),
        (lambda m: extend(m, "dape-v2-kerple"), "dape-v2 cannot start as the model"),
        (lambda m: extend(m, hiden=3), "hiden"),
        (lambda m: extend(extend(m)), "has an adapter already"),
        (lambda m: remove(m), "the model has no adapter"),
        (lambda m: save_adapter(m, "nowhere"), "the model has no adapter"),
    ],
)
def test_refused(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call(make("llama"))


@pytest.mark.parametrize(
    "call", [lambda m: extend(m, hiden=3), lambda m: extend(m, "dape-v2-kerple"), lambda m: extend(m, train_length=0)]
)
def test_what_is_refused_leaves_the_model_as_it_was(call):
    model = make("llama")
    with pytest.raises((ValueError, TypeError)):
        call(model)
    assert all(p.requires_grad for p in model.parameters()) and not hasattr(attention_layers(model)[0], "dape")
    extend(model)


def test_attention_that_cannot_be_replaced(monkeypatch):
    model = make("llama")
    monkeypatch.setattr(model, "set_attn_implementation", lambda name: None)
    with pytest.raises(ValueError, match="load it with attn_implementation='eager' or 'sdpa'"):
        extend(model)
    assert all(p.requires_grad for p in model.parameters()) and not hasattr(attention_layers(model)[0], "dape")


def test_key_heads_that_do_not_divide():
    model = make("llama")
    model.config.num_key_value_heads = 3
    with pytest.raises(ValueError, match="4 query heads cannot share 3 key heads"):
        extend(model)


WINDOW = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}


@pytest.mark.parametrize(
    ("kind", "window", "words", "advice"),
    [
        ("mistral", {"sliding_window": 8}, "sliding_window=None", {"sliding_window": None}),
        ("qwen2", WINDOW, r"layer_types=\['full_attention'\] \* 2", {"layer_types": ["full_attention"] * 2}),
        ("qwen3", WINDOW, r"layer_types=\['full_attention'\] \* 2", {"layer_types": ["full_attention"] * 2}),
    ],
)
def test_a_sliding_window_is_refused_and_the_advice_helps(kind, window, words, advice, tokens, tmp_path):
    model = make(kind, **window)
    with pytest.raises(ValueError, match=f"sliding window of 8 tokens.*{words}"):
        extend(model)
    model.save_pretrained(tmp_path)
    advised = extend(transformers.AutoModelForCausalLM.from_pretrained(tmp_path, **advice))
    torch.testing.assert_close(advised(tokens[:, :8]).logits, model(tokens[:, :8]).logits, atol=1e-5, rtol=1e-5)
    advised(tokens)


@pytest.mark.parametrize("kind", SUPPORTED)
def test_weights_that_do_not_exist_are_not_promised(kind, tokens):
    model = make(kind)
    extend(model, "dape-kerple", train_length=8)
    with pytest.raises(ValueError, match="never whole in memory"):
        model(tokens, output_attentions=True)
    with pytest.raises(ValueError, match="never whole in memory"):
        generate(model, tokens[:, :4], output_attentions=True, return_dict_in_generate=True)
    model(tokens, output_attentions=False)
    remove(model).set_attn_implementation("eager")
    assert model(tokens, output_attentions=True).attentions[0].shape == (2, 4, 37, 37)


@pytest.mark.parametrize("more", [{"use_cache": False}, {}, {"attention_mask": torch.ones(2, 37, dtype=torch.long)}])
@pytest.mark.parametrize("kind", SUPPORTED)
def test_packed_sequences_are_refused(kind, more, tokens):
    model = extend(make(kind))
    positions = torch.cat([torch.arange(20), torch.arange(17)]).expand(2, -1)
    with pytest.raises(ValueError, match="packed"):
        model(tokens, position_ids=positions, **more)
    whole = torch.arange(37).expand(2, -1)
    torch.testing.assert_close(model(tokens, position_ids=whole, **more).logits, model(tokens).logits)


def test_a_layer_without_adapter_says_so(tokens):
    model = extend(make("llama"))
    del attention_layers(model)[1].dape
    with pytest.raises(ValueError, match="has no adapter; call"):
        model(tokens)
