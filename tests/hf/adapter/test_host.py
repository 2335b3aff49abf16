"""The model around an adapter: as before once that is removed, and independent of others of its configuration."""

import pytest
import torch

pytest.importorskip("transformers")

from tests.hf.adapter.models import CORE, make, shake

from dape.hf import adapter_parameters, extend, load_adapter, remove, save_adapter
from dape.hf.hosts import attention_layers, describe


def test_describe():
    assert describe(make("qwen3")).head_dim == 16 and describe(make("gpt2")).rotates is False


@pytest.mark.parametrize("kind", CORE)
def test_dropout_comes_back(kind, tokens):
    model = make(kind, **{"attn_pdrop" if kind == "gpt2" else "attention_dropout": 0.4}).train()

    def twice():
        torch.manual_seed(0)
        return model(tokens, use_cache=False).logits

    before = twice()
    extend(model)
    model(tokens, use_cache=False)
    remove(model)
    assert torch.equal(twice(), before)


def test_what_was_frozen_before_stays_frozen():
    model = make("llama")
    model.lm_head.requires_grad_(False)
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    remove(extend(model))
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before
    remove(extend(model, freeze=False))
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before


@pytest.mark.parametrize("kind", CORE)
def test_models_of_one_configuration_are_independent(kind, tokens):
    first = make(kind)
    config = first.config
    second = type(first)(config).eval()
    second.load_state_dict(first.state_dict())
    before = first(tokens).logits
    shake(extend(second, "dape-kerple"))
    assert torch.equal(first(tokens).logits, before) and config._attn_implementation == "sdpa"
    assert (second(tokens).logits - before).abs().max() > 1e-3
    later = type(first)(config).eval()
    later.load_state_dict(first.state_dict())
    assert torch.equal(later(tokens).logits, before)
    shake(extend(first, "dape-kerple"))
    assert torch.equal(first(tokens).logits, second(tokens).logits)
    assert torch.equal(remove(second)(tokens).logits, before) and first.config._attn_implementation == "dape"
    assert second.config.to_dict() == config.to_dict() and second.config._attn_implementation == "sdpa"


@pytest.mark.filterwarnings("ignore")  # of accelerate, about its own files
def test_layers_on_the_disk(tokens, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    expected = extend(make("llama"), "dape-kerple")
    shake(expected)
    model = accelerate.disk_offload(make("llama"), tmp_path / "disk", execution_device=torch.device("cpu"))
    assert all(p.is_meta for p in attention_layers(model)[0].parameters())
    extend(model, "dape-kerple")
    assert all(p.device.type == "cpu" for p in adapter_parameters(model))
    shake(model)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, expected(tokens).logits)
    save_adapter(model, tmp_path / "a")
    load_adapter(make("llama"), tmp_path / "a")  # of the weights nothing is known: no warning
