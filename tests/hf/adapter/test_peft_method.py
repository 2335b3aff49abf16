"""Adapters in the peft library's own way: its folders, its calls, its refusals."""

import json
import warnings

import pytest
import torch

pytest.importorskip("peft")
pytest.importorskip("transformers")

import peft
from tests.hf.adapter.models import make, shake
from transformers import AutoModelForCausalLM

from dape.hf import adapter_of, adapter_parameters, extend, load_adapter, save_adapter
from dape.hf.peft_method import DapeAdapterConfig

CAUSAL = {"task_type": "CAUSAL_LM", "train_length": 32}


@pytest.fixture
def saved(tmp_path, tokens):
    """A folder, and the logits of the model it comes from."""
    model = extend(make("llama"), "dape-kerple", train_length=32, hidden=8)
    shake(model)
    save_adapter(model, tmp_path / "a", about={"note": "mine"})
    return tmp_path / "a", model(tokens).logits


def test_a_folder_is_laid_out_as_peft_does(saved):
    folder, _ = saved
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    facts = json.loads((folder / "adapter_config.json").read_text())
    assert facts["peft_type"] == "DAPE" and facts["task_type"] == "CAUSAL_LM" and "base_model_name_or_path" in facts
    assert "library_name: peft" in (folder / "README.md").read_text()


def test_peft_loads_it(saved, tokens):
    folder, expected = saved
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = peft.PeftModel.from_pretrained(make("llama"), folder)
    assert isinstance(model, peft.PeftModelForCausalLM)
    assert torch.equal(model(tokens).logits, expected)
    assert not any(p.requires_grad for p in model.parameters())
    trained = peft.PeftModel.from_pretrained(make("llama"), folder, is_trainable=True)
    assert {id(p) for p in trained.parameters() if p.requires_grad} == {id(p) for p in adapter_parameters(trained)}


def test_the_folder_finds_its_model(tokens, tmp_path):
    """By the path it notes, through peft's own Auto class and through the library's."""
    make("llama").save_pretrained(tmp_path / "llama")
    model = extend(AutoModelForCausalLM.from_pretrained(tmp_path / "llama"), "dape-kerple", train_length=32)
    shake(model)
    save_adapter(model, tmp_path / "a")
    for kind in (peft.AutoPeftModelForCausalLM, AutoModelForCausalLM):
        assert torch.equal(kind.from_pretrained(str(tmp_path / "a"))(tokens).logits, model(tokens).logits)


def test_what_peft_saves_either_loads(saved, tokens, tmp_path):
    folder, expected = saved
    peft.PeftModel.from_pretrained(make("llama"), folder).save_pretrained(tmp_path / "again")
    assert torch.equal(load_adapter(make("llama"), tmp_path / "again")(tokens).logits, expected)
    assert torch.equal(peft.PeftModel.from_pretrained(make("llama"), tmp_path / "again")(tokens).logits, expected)
    facts = json.loads((tmp_path / "again/adapter_config.json").read_text())
    assert "sha256" not in facts and facts["about"] == {"note": "mine"} and facts["host"]["model_type"] == "llama"


def test_a_new_one_by_peft(tokens, tmp_path):
    model = peft.get_peft_model(make("llama"), DapeAdapterConfig(method="dape-alibi", options={"hidden": 8}, **CAUSAL))
    torch.testing.assert_close(model(tokens).logits, make("llama")(tokens).logits, rtol=0, atol=1e-5)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained and all(".dape." in name for name in trained)
    shake(model)
    model.save_pretrained(tmp_path / "a")
    fresh = load_adapter(make("llama"), tmp_path / "a")
    assert torch.equal(fresh(tokens).logits, model(tokens).logits)
    assert adapter_of(fresh) == adapter_of(model)


def test_switched_off_and_on(saved, tokens):
    folder, expected = saved
    model = peft.PeftModel.from_pretrained(make("llama"), folder)
    with model.disable_adapter():
        assert torch.equal(model(tokens).logits, make("llama")(tokens).logits)
    assert torch.equal(model(tokens).logits, expected)
    assert torch.equal(model.unload()(tokens).logits, make("llama")(tokens).logits)


def test_switched_off_with_its_rotation(tokens):
    config = DapeAdapterConfig(rope="yarn", factor=4.0, **CAUSAL)
    model = peft.get_peft_model(make("llama"), config)
    shake(model)
    before = model(tokens).logits
    with model.disable_adapter():
        assert torch.equal(model(tokens).logits, make("llama")(tokens).logits)
    assert torch.equal(model(tokens).logits, before)


def test_merging_is_refused_with_the_reason(saved):
    model = peft.PeftModel.from_pretrained(make("llama"), saved[0])
    for call in (model.merge_and_unload, model.merge_adapter, model.unmerge_adapter):
        with pytest.raises(ValueError, match=r"cannot be merged: f is a function of the scores.*unload"):
            call()


def test_one_is_enough(saved):
    model = peft.PeftModel.from_pretrained(make("llama"), saved[0])
    with pytest.raises(ValueError, match="a model holds one adapter of dape"):
        model.load_adapter(saved[0], "other")
    with pytest.raises(ValueError, match="has an adapter already"):
        peft.get_peft_model(extend(make("llama")), DapeAdapterConfig(**CAUSAL))


def test_another_model_and_another_method_are_refused(saved, tmp_path):
    with pytest.raises(ValueError, match="another model: model_type llama, the model has gpt2"):
        peft.PeftModel.from_pretrained(make("gpt2"), saved[0])
    lora = peft.get_peft_model(make("llama"), peft.LoraConfig(r=2, target_modules="all-linear"))
    lora.save_pretrained(tmp_path / "lora")
    with pytest.raises(ValueError, match=r"peft_type 'LORA' is no adapter of dape; peft\.PeftModel"):
        load_adapter(make("llama"), tmp_path / "lora")


def test_beside_lora(saved, tokens, tmp_path):
    """Ours from its folder, theirs around it; both learn, and each is saved by itself."""
    model = load_adapter(make("llama"), saved[0])
    model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
    for p in adapter_parameters(model):
        p.requires_grad_(True)
    model.train()(tokens, labels=tokens, use_cache=False).loss.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    save_adapter(model, tmp_path / "ours")
    model.save_pretrained(tmp_path / "theirs")
    expected = model.eval()(tokens).logits
    again = peft.PeftModel.from_pretrained(load_adapter(make("llama"), tmp_path / "ours"), tmp_path / "theirs")
    torch.testing.assert_close(again(tokens).logits, expected)
