"""Logits with an adapter: nothing changes at first, then they are the formula, in any precision."""

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from tests.hf.adapter.models import COMMON, CORE, METHODS, make, shake

from dape.hf import adapter_parameters, extend, remove
from dape.hf import attention as interface
from dape.hf.adapter import encodings_of
from dape.ops.attention import operator


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", CORE)
def test_nothing_changes_at_first(kind, method, tokens):
    model = make(kind)
    before = model(tokens).logits
    extend(model, method)
    torch.testing.assert_close(model(tokens).logits, before, atol=1e-5, rtol=1e-5)
    shake(model)
    assert (model(tokens).logits - before).abs().max() > 1e-3
    remove(model)
    assert torch.equal(model(tokens).logits, before)


@pytest.mark.parametrize("kind", CORE)
def test_the_future_is_hidden(kind, tokens):
    model = extend(make(kind), "dape-kerple")
    shake(model)
    changed = tokens.clone()
    changed[:, 20:] = (changed[:, 20:] + 7) % 101
    one, other = model(tokens).logits, model(changed).logits
    torch.testing.assert_close(one[:, :20], other[:, :20], atol=1e-5, rtol=1e-5)
    assert (one[:, 20:] - other[:, 20:]).abs().max() > 1e-3


@pytest.mark.parametrize("kind", CORE)
def test_logits_are_the_formula(kind, tokens, monkeypatch):
    """One layer by hand: A + f([A; B]), the scores those of the model itself."""
    model = extend(make(kind), "dape-kerple")
    shake(model)
    seen, inner = {}, interface.attention

    def spy(q, k, v, pe, **more):
        seen.setdefault("first", (q, k, v, pe, inner(q, k, v, pe, **more)))
        return inner(q, k, v, pe, **more)

    monkeypatch.setattr(interface, "attention", spy)
    model(tokens)
    q, k, v, pe, out = seen["first"]
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1).double() for x in (k, v))
    scores = q.double() @ k.mT / q.shape[-1] ** 0.5
    n = torch.arange(37)
    bias = -pe.base.r1.double()[:, None, None] * torch.log1p(
        pe.base.r2.double()[:, None, None] * (n[:, None] - n).clamp(min=0)
    )
    both = torch.cat([scores, bias.expand_as(scores)], 1).movedim(1, -1)
    hidden = torch.nn.functional.leaky_relu(both @ pe.f.first.weight.double().mT + pe.f.first.bias.double(), 0.01)
    added = (hidden @ pe.f.second.weight.double().mT + pe.f.second.bias.double()).movedim(-1, 1)
    hiding = torch.triu(torch.full((37, 37), -torch.inf, dtype=torch.float64), 1)
    expected = (scores + added + hiding).softmax(-1) @ v
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-4)


def test_starting_as_in_a_new_model(tokens):
    model = make("llama")
    before = model(tokens).logits
    extend(model, "dape-kerple", zero_init=False)
    assert encodings_of(model)[0].variant == "concat_residual"
    assert (model(tokens).logits - before).abs().max() > 1e-3


def test_a_map_of_the_bias_needs_no_content(tokens):
    model = extend(make("llama"), "dape-kerple", variant="bias_map", hidden=8)
    before = make("llama")(tokens).logits
    torch.testing.assert_close(model(tokens).logits, before, atol=1e-5, rtol=1e-5)
    assert encodings_of(model)[0].f.first.weight.shape == (8, 4)
    assert encodings_of(model)[0].score_form().mix is None


def test_how_many_numbers():
    """The issue's example: 4 layers of 8 heads, 3,296 numbers; and about 15 thousand for a model of 125M."""
    config = transformers.LlamaConfig(**{**COMMON, "num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 64})
    model = extend(transformers.LlamaForCausalLM(config), "dape-kerple")
    assert sum(p.numel() for p in adapter_parameters(model)) == 3296
    with torch.device("meta"):
        large = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    extend(large, "dape-kerple")
    assert 14_000 < sum(p.numel() for p in adapter_parameters(large)) < 16_000


def test_half_precision(tokens):
    model = make("llama").to(torch.bfloat16)
    before = model(tokens).logits
    extend(model, "dape-kerple")
    assert all(p.dtype == torch.float32 for p in adapter_parameters(model))
    after = model(tokens).logits
    assert after.dtype == torch.bfloat16
    torch.testing.assert_close(after.float(), before.float(), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("kind", CORE)
def test_mixed_precision_is_near(kind, tokens):
    model = extend(make(kind), "dape-kerple").train()
    shake(model)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    expected = model(tokens, use_cache=False).logits
    with torch.autocast("cpu", torch.bfloat16):
        found = model(tokens, use_cache=False).logits
    torch.testing.assert_close(found.float(), expected, atol=0.05, rtol=0.05)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
def test_compiled(tokens):
    model = extend(make("llama"), "dape-kerple")
    shake(model)
    mask = torch.ones_like(tokens)
    mask[0, :5] = 0
    compiled = torch.compile(model)
    with torch.no_grad():
        torch.testing.assert_close(compiled(tokens).logits, model(tokens).logits, atol=1e-5, rtol=1e-4)
        one, other = (m(tokens, attention_mask=mask).logits[mask.bool()] for m in (compiled, model))
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_padding_is_looked_for_once(tokens, monkeypatch):
    """Not in every layer: each look waits for a GPU."""
    model, looks, look = extend(make("llama"), "dape-kerple"), [], torch.Tensor.__bool__
    monkeypatch.setattr(operator, "check_outcome", lambda out, pe: None)  # does nothing on a GPU
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda x: looks.append(x.shape) or look(x))
    model(tokens, attention_mask=torch.ones_like(tokens))
    whole = len(looks)
    model.config.num_hidden_layers, layers = 1, model.model.layers
    model.model.layers = layers[:1]
    looks.clear()
    model(tokens, attention_mask=torch.ones_like(tokens))
    assert len(layers) > 1 and len(looks) == whole == 1
