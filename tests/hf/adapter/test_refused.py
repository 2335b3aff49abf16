"""What cannot be meant: options, models and calls that are refused, and a model that stays as it was."""

import pytest
import torch

pytest.importorskip("transformers")

from tests.hf.adapter.models import CORE, generate, make

from dape.hf import extend, remove, save_adapter
from dape.hf.hosts import attention_layers


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: extend(torch.nn.Linear(2, 2)), "Linear: adapters exist for bloom, falcon, gemma, "),
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
        (
            lambda m: extend(make("bloom"), train_length=64),
            "trained with ALiBi.*Possible is dape-alibi.*got dape-kerple",
        ),
        (lambda m: extend(make("bloom"), "dape-alibi"), "does not say its length: pass train_length"),
        (
            lambda m: extend(make("bloom"), "dape-alibi", train_length=64, variant="concat"),
            "leaves the model's own B away; with zero_init choose concat_residual or add_residual",
        ),
        (lambda m: extend(make("bloom"), "dape-alibi", train_length=64, rope="remove"), "has no rotation to remove"),
        (lambda m: extend(make("mpt", n_heads=6, d_model=36), "dape-alibi"), "mpt with 6 heads orders its slopes"),
        (lambda m: extend(make("falcon", alibi=True)), "only Falcon models with rotation"),
        (lambda m: extend(make("gemma3_text"), rope="yarn", factor=4.0), "of its own for each kind of layer"),
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


@pytest.mark.parametrize("kind", CORE)
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


@pytest.mark.parametrize("more", [{}, {"attention_mask": torch.ones(2, 37, dtype=torch.long)}])
@pytest.mark.parametrize("kind", CORE)
def test_packed_sequences_that_the_library_would_mix_are_refused(kind, more, tokens):
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
