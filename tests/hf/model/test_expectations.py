"""What the transformers library expects of every model, in the way of its own tests (docs/hugging-face.md counts them):
both classes, four encodings, padding on the left."""

import copy
import inspect

import pytest
import torch

pytest.importorskip("transformers")

from tests.hf.model.models import continued, settings, tiny, tokens
from transformers import DynamicCache

from dape.hf import DapeForCausalLM, DapeModel

ENCODINGS = ["dape-kerple", "alibi", "rope", "fire"]
CLASSES = [DapeModel, DapeForCausalLM]
MASK = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1] * 7])


def made(kind, encoding, **more):
    torch.manual_seed(0)
    return kind(settings(encoding, **more)).eval()


@pytest.fixture(params=ENCODINGS)
def encoding(request) -> str:
    return request.param


@pytest.fixture(params=CLASSES)
def model(request, encoding):
    return made(request.param, encoding)


def test_tuples_hold_what_the_outputs_hold(model):
    given = {"input_ids": tokens(), "attention_mask": MASK, "output_hidden_states": True, "use_cache": False}
    with torch.no_grad():
        named, plain = model(**given), model(**given, return_dict=False)
    assert torch.equal(plain[0], named[0]) and len(plain) == len(named.to_tuple()) == 2
    assert all(torch.equal(a, b) for a, b in zip(plain[1], named.hidden_states, strict=True))


def test_arguments_have_the_librarys_names_and_order(model):
    names = list(inspect.signature(model.forward).parameters)
    assert names[:5] == ["input_ids", "attention_mask", "position_ids", "past_key_values", "inputs_embeds"]


def test_texts_of_a_batch_do_not_see_each_other(model):
    with torch.no_grad():
        both = model(tokens(), attention_mask=MASK)[0]
        for row in (0, 1):
            alone = model(tokens()[row : row + 1], attention_mask=MASK[row : row + 1])[0]
            torch.testing.assert_close(both[row : row + 1][:, MASK[row] == 1], alone[:, MASK[row] == 1])


def test_what_is_saved_is_what_is_loaded(model, folder):
    loaded, report = type(model).from_pretrained(folder(model), output_loading_info=True)
    assert not any(report.values()), report
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
    with torch.no_grad():
        assert torch.equal(model(tokens())[0], loaded.eval()(tokens())[0])


def test_new_weights_are_numbers_of_a_sensible_size(model):
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all() and parameter.mean().abs() < 2, name
        assert parameter.is_contiguous() and parameter.dtype == torch.float32


def test_every_tensor_learns_and_recomputing_changes_no_gradient(model):
    grads = []
    for recompute in (False, True):
        model.zero_grad()
        if recompute:
            model.gradient_checkpointing_enable()
            assert model.is_gradient_checkpointing
        states = model.train()(tokens(), attention_mask=MASK)[0]
        states[:, 3:].square().sum().backward()
        grads.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing
    learned = {name for name, _ in model.named_parameters()}
    assert grads[0].keys() == grads[1].keys() == learned
    for name in learned:
        torch.testing.assert_close(grads[0][name], grads[1][name])


def test_gradients_reach_hidden_states(model):
    out = model(tokens(), output_hidden_states=True)
    for states in out.hidden_states:
        states.retain_grad()
    out[0][0, -1].sum().backward()
    assert all(states.grad is not None for states in out.hidden_states)


def test_a_copy_is_a_model_of_its_own(model):
    other = copy.deepcopy(model)
    with torch.no_grad():
        before = other(tokens())[0]
        for parameter in model.parameters():
            parameter.add_(1)
        assert torch.equal(other(tokens())[0], before)


def test_generation_goes_on_from_a_cache(encoding):
    model, prompt = tiny(encoding), tokens()
    whole = continued(model, prompt, 8)
    first = model.generate(
        prompt, max_new_tokens=4, do_sample=False, pad_token_id=0, return_dict_in_generate=True, use_cache=True
    )
    rest = model.generate(
        first.sequences, past_key_values=first.past_key_values, max_new_tokens=4, do_sample=False, pad_token_id=0
    )
    assert isinstance(first.past_key_values, DynamicCache)
    assert torch.equal(rest[:, prompt.shape[1] :], whole)


def test_what_generation_returns_beside_texts(encoding):
    model, prompt = tiny(encoding), tokens()
    asked = {
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
        "output_hidden_states": True,
    }
    found = model.generate(
        prompt, attention_mask=MASK, max_new_tokens=4, num_beams=2, num_return_sequences=2, pad_token_id=0, **asked
    )
    assert found.sequences.shape == (4, 11) and len(found.scores) == len(found.logits) == len(found.hidden_states) == 4
    assert found.hidden_states[0][-1].shape == (4, 7, 32) and found.hidden_states[1][0].shape == (4, 1, 32)


def test_an_assistant_changes_nothing(encoding):
    model, prompt = tiny(encoding), tokens(1)
    assistant = made(DapeForCausalLM, encoding, layers=1)
    assert torch.equal(continued(model, prompt, assistant_model=assistant), continued(model, prompt))
