"""LoRA of the peft library beside an adapter of ours: either order, and nothing is frozen without a word."""

import warnings

import pytest
import torch

pytest.importorskip("peft")
pytest.importorskip("transformers")

import peft
from tests.hf.adapter.models import make, shake

from dape.hf import ProjectPositions, adapter_of, adapter_parameters, extend, load_adapter, remove, save_adapter

LORA = {"r": 2, "target_modules": "all-linear"}


def lora(model, **more):
    torch.manual_seed(0)
    made = peft.get_peft_model(model, peft.LoraConfig(**LORA, **more))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    return made


def adapted(method: str = "dape-kerple"):
    model = extend(make("llama"), method)
    shake(model)
    return model


def logits(model, tokens):
    with torch.no_grad():
        return model(tokens).logits


@pytest.mark.parametrize("method", ["dape-kerple", "dape-fire", "kerple"])
def test_lora_acts_as_if_merged(method, tokens):
    """It used to wrap f, be ignored there, and change the model when it was merged."""
    model = lora(adapted(method))
    assert not any(".dape." in name for name, _ in model.named_parameters() if "lora_" in name)
    before = logits(model, tokens)
    assert not torch.allclose(before, logits(adapted(method), tokens), atol=1e-2)
    merged = model.merge_and_unload()
    torch.testing.assert_close(logits(merged, tokens), before, rtol=1e-4, atol=1e-4)
    assert adapter_of(merged).method == method


def train_step(model, tokens):
    model.train()
    model(tokens, labels=tokens, use_cache=False).loss.backward()


def test_an_adapter_frozen_by_peft_is_not_frozen_silently(tokens):
    model = lora(adapted())
    with pytest.warns(UserWarning, match=r"dape adapter is frozen.*modules_to_save.*adapter_parameters"):
        train_step(model, tokens)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        train_step(model, tokens)


def test_both_learn(tokens):
    model = lora(adapted())
    for parameter in adapter_parameters(model):
        parameter.requires_grad_(True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_step(model, tokens)
    own = list(adapter_parameters(model))
    theirs = [p for name, p in model.named_parameters() if "lora_" in name]
    assert own and theirs and all(p.grad is not None and p.grad.abs().max() > 0 for p in own + theirs)


@pytest.mark.parametrize("wrapped", [True, False], ids=["get_peft_model", "add_adapter"])
def test_an_adapter_does_not_freeze_lora_silently(wrapped, tokens, tmp_path):
    save_adapter(adapted(), tmp_path / "saved")
    model = lora(make("llama")) if wrapped else make("llama")
    if not wrapped:
        model.add_adapter(peft.LoraConfig(**LORA))
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    before = {name for name, _ in model.named_modules()}
    for put in (lambda: extend(model, "dape-kerple"), lambda: load_adapter(model, tmp_path / "saved")):
        with pytest.raises(ValueError, match=r"peft trains \d+ tensors.*lora_.*freeze=False.*merge_and_unload"):
            put()
    assert {name for name, _ in model.named_modules()} == before, "left as it was"
    extend(model, "dape-kerple", freeze=False)
    found = {name for name, p in model.named_parameters() if p.requires_grad}
    assert {name for name in found if ".dape." not in name} == trained
    assert len(found) - len(trained) == len(list(adapter_parameters(model)))
    train_step(model, tokens)
    assert all(p.grad is not None for p in adapter_parameters(model))


def test_lora_that_is_not_trained_may_be_frozen(tokens):
    model = lora(make("llama"))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    extend(model, "dape-kerple")
    assert {id(p) for p in model.parameters() if p.requires_grad} == {id(p) for p in adapter_parameters(model)}


def test_the_adapter_belongs_to_the_model_inside_the_wrapper(tokens):
    """Merged and out of its wrapper, the model still knows it."""
    model = extend(lora(make("llama")), "dape-kerple", freeze=False)
    shake(model)
    before = logits(model, tokens)
    merged = model.merge_and_unload()
    torch.testing.assert_close(logits(merged, tokens), before, rtol=1e-4, atol=1e-4)
    assert adapter_of(merged).method == "dape-kerple"
    remove(merged)
    with pytest.raises(ValueError, match="no adapter"):
        adapter_of(merged)
    assert "dape" not in "".join(name for name, _ in merged.named_modules())


def test_taking_the_adapter_out_leaves_it_to_peft_what_is_trained(tokens):
    model = lora(extend(make("llama"), "dape-kerple"))
    remove(model)
    assert all(("lora_" in name) == p.requires_grad for name, p in model.named_parameters())
    torch.testing.assert_close(logits(model, tokens), logits(lora(make("llama")), tokens))


def learned_together(tokens):
    model = lora(adapted(), modules_to_save=["dape"])
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_step(model, tokens)
    optimizer.step()
    return model.eval()


def test_peft_trains_a_copy_of_the_adapter_beside_lora(tokens):
    model = learned_together(tokens)
    own = list(adapter_parameters(model))
    assert own and all(p.grad is not None for p in own) and max(float(p.grad.abs().max()) for p in own) > 0
    assert {id(p) for p in own} <= {id(p) for p in model.parameters() if p.requires_grad}
    with model.disable_adapter():
        torch.testing.assert_close(logits(model, tokens), logits(adapted(), tokens))
    assert not torch.allclose(logits(model, tokens), logits(lora(adapted()), tokens), atol=1e-4)


def test_lora_and_adapter_in_one_folder_of_peft(tokens, tmp_path):
    model = learned_together(tokens)
    model.save_pretrained(tmp_path / "both")
    loaded = peft.PeftModel.from_pretrained(extend(make("llama"), "dape-kerple"), tmp_path / "both").eval()
    torch.testing.assert_close(logits(loaded, tokens), logits(model, tokens))


def test_merged_the_trained_copy_stays(tokens, tmp_path):
    model = learned_together(tokens)
    before = logits(model, tokens)
    merged = model.merge_and_unload()
    torch.testing.assert_close(logits(merged, tokens), before, rtol=1e-4, atol=1e-4)
    save_adapter(merged, tmp_path / "own")
    assert all(not p.is_meta for p in adapter_parameters(merged))
    remove(merged)
    load_adapter(merged, tmp_path / "own")
    torch.testing.assert_close(logits(merged, tokens), before, rtol=1e-4, atol=1e-4)


def test_projection_through_the_wrapper():
    model = lora(adapted())
    values = [p for name, p in model.named_parameters() if name.endswith("base.r1")]
    for r1 in values:
        r1.data.fill_(-1.0)
    ProjectPositions().on_optimizer_step(None, None, None, model=model)
    assert len(values) == 2 and all((r1 >= 0.01).all() for r1 in values)
    with pytest.raises(ValueError, match="holds no positional encoding"):
        ProjectPositions().on_optimizer_step(None, None, None, model=make("llama"))
