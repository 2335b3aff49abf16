"""Our model with LoRA of the peft library: what is trained is what is computed, in every way the model is called."""

import pytest
import torch

pytest.importorskip("peft")
pytest.importorskip("transformers")

import peft
from tests.hf.model.models import NAMES, continued, tiny, tokens

from dape.hf import ProjectPositions


def lora(model):
    torch.manual_seed(1)
    made = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules="all-linear"))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    return made.eval()


def ways(model) -> list[torch.Tensor]:
    """All tokens, the last ones, and with a cache."""
    x = tokens()
    with torch.no_grad():
        first = model(x[:, :4], use_cache=True)
        rest = model(x[:, 4:], past_key_values=first.past_key_values, use_cache=True)
        return [model(x).logits, model(x, logits_to_keep=2).logits, rest.logits]


@pytest.mark.parametrize("name", NAMES)
def test_lora_is_computed_as_it_is_merged(name):
    """The last block reads no queries it does not need; LoRA on q, k and v was forgotten there."""
    model = lora(tiny(name))
    found, without = ways(model), ways(tiny(name))
    text = continued(model, tokens())
    merged = model.merge_and_unload()
    for a, b, c in zip(found, ways(merged), without, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
        assert not torch.allclose(a, c, atol=1e-1)
    assert torch.equal(continued(merged, tokens()), text)


@pytest.mark.parametrize("name", ["dape-kerple", "dape-fire", "transformer-xl", "dape-v2-kerple"])
def test_everything_that_lora_trains_gets_a_gradient(name):
    model = lora(tiny(name)).train()
    model(tokens(), labels=tokens()).loss.backward()
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert trained and all(p.grad is not None and p.grad.abs().max() > 0 for p in trained.values())
    assert not any("encodings" in n for n in trained), "encodings have no linear layers of tokens"


def test_projection_through_the_wrapper():
    model = lora(tiny("dape-kerple"))
    r1 = model.get_base_model().model.encodings[0].base.r1
    r1.data.fill_(-1.0)
    ProjectPositions().on_optimizer_step(None, None, None, model=model)
    assert (r1 >= 0.01).all()


def test_hooks_on_the_model_inside_run():
    model, seen = tiny(), []
    model.model.register_forward_hook(lambda module, args, out: seen.append(out.last_hidden_state.shape))
    model(tokens(), logits_to_keep=2)
    assert seen == [(2, 2, 32)]
